// One job: a scripted gateway for the tests: a WebSocket server of a few lines, a log per session, and faults on demand.

import { createHash, randomBytes } from 'node:crypto';
import { createServer } from 'node:http';

/** As the real gateway writes frames: without what is zero, empty or false; bodies stay as they are. */
function bare(frame) {
  const kept = {};
  for (const [name, value] of Object.entries(frame)) {
    if (name === 'body' || name === 'metadata') kept[name] = value;
    else if (Array.isArray(value)) kept[name] = value.map(bare);
    else if (value !== null && typeof value === 'object') kept[name] = bare(value);
    else if (value !== 0 && value !== '' && value !== false) kept[name] = value;
  }
  return kept;
}

/** Just enough WebSocket: text frames, close, no extensions. */
class Wire {
  constructor(socket) {
    this.socket = socket;
    this.buffer = Buffer.alloc(0);
    this.open = true;
    socket.on('data', (data) => this.#feed(data));
    socket.on('error', () => {});
    socket.on('close', () => {
      this.open = false;
      this.onclose?.(this.code ?? 1006);
    });
  }

  #feed(data) {
    this.buffer = Buffer.concat([this.buffer, data]);
    for (;;) {
      if (this.buffer.length < 6) return;
      let size = this.buffer[1] & 127;
      let at = 2;
      if (size === 126) [size, at] = [this.buffer.readUInt16BE(2), 4];
      else if (size === 127) [size, at] = [Number(this.buffer.readBigUInt64BE(2)), 10];
      if (this.buffer.length < at + 4 + size) return;
      const mask = this.buffer.subarray(at, at + 4);
      const body = Buffer.from(this.buffer.subarray(at + 4, at + 4 + size)).map((byte, i) => byte ^ mask[i % 4]);
      const opcode = this.buffer[0] & 15;
      this.buffer = this.buffer.subarray(at + 4 + size);
      if (opcode === 1) this.ontext?.(body.toString());
      if (opcode === 8) {
        this.code = body.length >= 2 ? body.readUInt16BE(0) : 1005;
        this.#write(8, body);
        this.socket.end();
      }
    }
  }

  #write(opcode, body) {
    if (!this.open || this.socket.destroyed) return;
    const head = body.length < 126 ? Buffer.from([128 | opcode, body.length]) : Buffer.alloc(4);
    if (body.length >= 126) {
      head[0] = 128 | opcode;
      head[1] = 126;
      head.writeUInt16BE(body.length, 2);
    }
    this.socket.write(Buffer.concat([head, body]));
  }

  send(...frames) {
    this.#write(1, Buffer.from(frames.map((frame) => JSON.stringify(bare(frame))).join('\n')));
  }

  close(code, reason = '') {
    const body = Buffer.alloc(2);
    body.writeUInt16BE(code);
    this.#write(8, Buffer.concat([body, Buffer.from(reason)]));
    this.socket.end();
  }

  kill() {
    this.socket.destroy();
  }
}

/** A session's log, kept as the real gateway keeps it in Redis. */
export class ScriptedGateway {
  sessions = new Map();
  wires = new Set();
  hellos = [];
  requests = []; // every request frame that came, copies too
  frames = []; // everything that came
  ran = []; // rids that were executed
  actions = { echo: (body) => body };
  refuse = null; // close code for the next hellos
  away = 0; // so many joins and leaves are answered with "try again"
  rejects = 0; // so many requests are rejected as retryable
  held = null; // a list: takes what should follow the next welcomes
  resets = null; // reason: answer the next resume with a reset

  async start() {
    this.server = createServer();
    this.server.on('upgrade', (request, socket) => {
      const accept = createHash('sha1')
        .update(`${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
        .digest('base64');
      socket.write(
        'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
          `Sec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: ${request.headers['sec-websocket-protocol']}\r\n\r\n`,
      );
      const wire = new Wire(socket);
      this.wires.add(wire);
      wire.onclose = () => this.wires.delete(wire);
      wire.ontext = (text) => text.split('\n').forEach((line) => this.#frame(wire, JSON.parse(line)));
    });
    await new Promise((resolve) => this.server.listen(this.port ?? 0, '127.0.0.1', resolve));
    this.port = this.server.address().port;
    this.url = `ws://127.0.0.1:${this.port}`;
    return this;
  }

  async stop() {
    this.killAll();
    await new Promise((resolve) => this.server.close(resolve));
  }

  killAll() {
    for (const wire of this.wires) wire.kill();
  }

  get session() {
    return [...this.sessions.values()].at(-1);
  }

  push(fields, session = this.session) {
    const seq = session.top + 1;
    const entry = { t: 'msg', seq, ts: seq * 1000, kind: 'notify', ...fields };
    session.log.set(seq, entry);
    session.top = seq;
    if (session.wire?.open && !session.mute) session.wire.send(entry);
    return seq;
  }

  #frame(wire, frame) {
    this.frames.push(frame);
    if (frame.t === 'hello') return this.#hello(wire, frame);
    const session = wire.session;
    if (frame.t === 'ack') this.#ack(session, frame);
    if (frame.t === 'pong') session.ponged = frame;
    if (frame.t === 'join' || frame.t === 'leave') {
      const refused = frame.group === 'secret';
      const away = this.away > 0 && this.away--;
      const code = away ? 503 : refused ? 403 : 0;
      const body = { group: frame.group, joined: frame.t === 'join' && !code, code, error: code ? 'no' : '' };
      wire.send({ t: 'vol', type: 'veredus.group', body });
    }
    if (frame.t === 'bye') this.sessions.delete(session.sid);
    if (frame.t === 'request') this.#request(session, frame);
    return undefined;
  }

  #ack(session, frame) {
    session.acked = Math.max(session.acked, frame.seq);
    session.ridFloor = frame.rid_floor ?? 0;
  }

  async #request(session, frame) {
    this.requests.push(frame);
    if (this.deaf) return;
    if (session.known.has(frame.rid)) {
      session.wire.send({ t: 'accept', rid: frame.rid });
      return;
    }
    if (this.rejects > 0) {
      this.rejects -= 1;
      session.wire.send({ t: 'reject', rid: frame.rid, code: 503, error: 'not now', retryable: true, retry_after_ms: 5 });
      return;
    }
    const action = this.actions[frame.action];
    if (!action) {
      session.wire.send({ t: 'reject', rid: frame.rid, code: 404, error: `no action ${frame.action}`, retryable: false });
      return;
    }
    session.known.add(frame.rid);
    session.wire.send({ t: 'accept', rid: frame.rid });
    this.ran.push(frame.rid);
    try {
      const body = await action(frame.body, session, frame);
      this.push({ kind: 'response', rid: frame.rid, body }, session);
    } catch (error) {
      this.push({ kind: 'response', rid: frame.rid, code: error.code ?? 500, error: error.message }, session);
    }
  }

  #hello(wire, frame) {
    this.hellos.push(frame);
    if (this.silent) return;
    if (this.refuse) {
      const { code, times } = this.refuse;
      if (times !== undefined && --this.refuse.times <= 0) this.refuse = null;
      wire.send({ t: 'close', code, reason: 'scripted', retry_after_ms: this.retryAfter ?? 0 });
      wire.close(code, 'scripted');
      return;
    }
    let session = frame.resume && this.sessions.get(frame.resume.sid);
    let result = session ? 'resumed' : 'new';
    let reason = frame.resume && !session ? 'unknown' : '';
    if (session && !session.secrets.includes(frame.resume.secret)) return wire.close(4501, 'wrong secret');
    if (!session) {
      const sid = `p001-${randomBytes(6).toString('hex')}`;
      session = { sid, epoch: randomBytes(4).toString('hex'), log: new Map(), top: 0, acked: 0, secrets: [], known: new Set() };
      this.sessions.set(sid, session);
      if (frame.resume) result = 'reset';
    }
    let base = { epoch: session.epoch, seq: frame.resume && result === 'resumed' ? frame.resume.cursor.seq : 0, ts: 0 };
    if (result === 'resumed' && this.resets) {
      [result, reason, this.resets] = ['reset', this.resets, null];
      session.epoch = randomBytes(4).toString('hex');
      base = { epoch: session.epoch, seq: session.acked, ts: session.acked * 1000 };
    }
    const secret = randomBytes(8).toString('hex');
    session.secrets = [secret, frame.resume?.secret]; // the welcome with the new one may be lost
    session.wire = wire;
    wire.session = session;
    const replay = [...session.log.values()].filter((entry) => entry.seq > base.seq);
    this.held?.push(...replay);
    wire.send(
      { t: 'welcome', sid: session.sid, secret, result, reason, cursor: base, top: session.top, node: 'n1',
        heartbeat_ms: this.heartbeat ?? 25000, pong_ms: this.pong ?? 10000, session_ttl_ms: 120000, limits: { max_frame: 65536 },
        open: [...session.known].map((rid) => ({ rid, state: 'open' })) },
      ...(this.held ? [] : replay),
    );
    return undefined;
  }
}
