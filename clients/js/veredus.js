// One job: a session with a Veredus gateway, in a browser or in Node: requests, numbered messages, resume.
//
// No build step and no dependencies. The protocol is the gateway's JSON encoding over WebSocket; see README.md.

const PROTOCOL = 'veredus.gw.1.json';
const VERSION = 1;
const FIRST_DO_NOT_RECONNECT = 4500;
const LATE_ATTACH = 60_000; // ms in which a gateway may still attach a hello that we have given up on
const TOKEN_EXPIRED = 4004;
const RETRYABLE = new Set([408, 429, 503, 504]);

const DEFAULTS = Object.freeze({
  windowMessages: 256,
  windowBytes: 262_144,
  ackMessages: 32, // an ack is sent after this many handled messages,
  ackBytes: 16_384, // or this many characters,
  ackDelay: 0.1, // or this many seconds after the first of them
  backoffBase: 0.2, // seconds; doubled by each failure, at most backoffMax, a random part of it is waited
  backoffMax: 20,
  retries: 5, // so often a request is sent again, under its number, that was rejected as retryable
  connectTimeout: 10, // from the first byte to the welcome
  stallTimeout: 5, // the gateway says that there is more, and nothing comes
  client: 'veredus-js/0.2.0',
});

/** What every error of this module is. `code` is a close code or a request's code; `retryable` says if trying again may help. */
export class GatewayError extends Error {
  constructor(text, { code = 0, retryable = false, retryAfter = 0, cause } = {}) {
    super(text, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    this.retryable = retryable;
    this.retryAfter = retryAfter;
  }
}

/** The gateway ended the session, and connecting again would not help (codes 4500 to 4999), or this side closed it. */
export class SessionClosed extends GatewayError {}

/** The request was accepted and its response is an error. */
export class RequestFailed extends GatewayError {}

/** The request was refused before it was accepted: it did not run. */
export class RequestRejected extends GatewayError {}

/** No response came in time; the request may or may not have run. */
export class RequestTimeout extends GatewayError {}

/** The session that the request belonged to is gone; the request may or may not have run. */
export class RequestLost extends GatewayError {}

/** Connect and wait for the first welcome. */
export async function connect(url, options = {}) {
  const session = new Session(url, options);
  await session.ready;
  return session;
}

/** A session: survives connections. Iterate over it, or listen to 'message'; either way an item is acknowledged once handled. */
export class Session {
  #urls;
  #turn = 0;
  #options;
  #WebSocket;
  #storage;
  #storageKey;

  #socket = null;
  #asked = false; // a hello has left on this connection
  #welcomed = false;
  #unwelcomed = []; // when hellos ended without a welcome
  #closed = null; // {error} once the session is over
  #failures = 0;
  #retryAfter = 0;
  #retryTimer;
  #helloTimer;
  #watchTimer;
  #ackTimer;
  #goawayTimer;
  #refreshing = false;
  #state = 'connecting';

  #sid = '';
  #secret = '';
  #epoch = '';
  #received = 0; // the highest number taken from the gateway
  #handled = 0; // the highest number that the application is done with
  #handledTime = 0;
  #confirmed = 0; // up to here this connection has shown that the log is the one we know; beyond it nothing is acknowledged
  #confirmedTime = 0;
  #acked = 0; // what was reported to the gateway
  #unackedBytes = 0;
  #times = new Map(); // number -> timestamp of what is received and not both handled and confirmed: tells a copy from a fork
  #top = 0; // the gateway's highest number, as far as we know
  #since = 0;
  #lastHeard = 0;
  #lastProgress = 0;
  #limits = {};
  #heartbeat = 25_000;
  #pong = 10_000;

  #nextRid = 1;
  #floor = 0;
  #ackedFloor = 0; // what was reported to the gateway
  #requests = new Map(); // rid -> what is needed to answer or to send it again
  #orphans = new Set(); // open requests of an earlier page, whose promises are gone

  #imported = false;
  #groups = new Map(); // name -> {wanted, promise, resolve, reject}
  #inbox = [];
  #sizes = new WeakMap();
  #answered = new WeakSet(); // responses that a promise got
  #current = null; // handed out and not yet handled
  #iterating = false;
  #wake = null;
  #pumping = false;
  #listeners = new Map();
  #settleReady;
  #figures = { received: 0, duplicates: 0, connections: 0, resumes: 0, resets: 0, gaps: 0, holes: 0, stalls: 0 };

  constructor(url, options = {}) {
    this.#urls = (Array.isArray(url) ? url : [url]).map(checkUrl);
    if (!this.#urls.length) throw new TypeError('url: got an empty list, expected at least one ws:// or wss:// address');
    for (const name of Object.keys(options)) {
      if (!(name in DEFAULTS) && !KNOWN.has(name)) {
        throw new TypeError(`unknown option ${name}; known are ${[...KNOWN, ...Object.keys(DEFAULTS)].join(', ')}`);
      }
    }
    this.#options = { ...DEFAULTS, ...options };
    this.#WebSocket = options.WebSocket ?? globalThis.WebSocket;
    if (!this.#WebSocket) {
      throw new TypeError('there is no global WebSocket here (Node < 22): give one as the option WebSocket');
    }
    this.#storage = options.storage === true ? globalThis.sessionStorage : options.storage || null;
    this.#storageKey = options.storageKey ?? `veredus:${this.#urls[0]}`;
    this.ready = new Promise((resolve, reject) => (this.#settleReady = { resolve, reject }));
    this.ready.catch(() => {}); // without a reader of this promise, 'closed' reports the end
    if (options.resume) this.#import(options.resume);
    else this.#restore();
    this.#lastProgress = this.#lastHeard = Date.now();
    globalThis.addEventListener?.('online', this.#online);
    globalThis.addEventListener?.('pagehide', this.#remember);
    this.#connect();
  }

  // ---- what the application may ask ----

  get id() {
    return this.#sid;
  }

  get state() {
    return this.#state;
  }

  /** Where the application has got to: all of it up to here is handled. */
  get cursor() {
    return { epoch: this.#epoch, seq: this.#handled, ts: this.#handledTime };
  }

  get stats() {
    return {
      ...this.#figures,
      received_seq: this.#received,
      handled_seq: this.#handled,
      acked_seq: this.#acked,
      waiting: this.#inbox.length,
      open_requests: this.#requests.size,
    };
  }

  /** Everything that another process needs to go on with this session: pass it as the option `resume`. Keep it secret. */
  export() {
    return { sid: this.#sid, secret: this.#secret, cursor: this.cursor, rid: this.#nextRid };
  }

  /** Ask for `action`; resolves with the body of the response. Sent again after a reconnect, run once. */
  request(action, body, { deadline, signal, serial = false, noReply = false } = {}) {
    if (typeof action !== 'string' || !action) {
      return Promise.reject(new TypeError(`action: got ${String(action)}, expected a name`));
    }
    if (deadline !== undefined && !(Number.isFinite(deadline) && deadline > 0)) {
      return Promise.reject(new TypeError(`deadline: got ${deadline}, expected seconds > 0`));
    }
    if (this.#closed) return Promise.reject(this.#endError());
    if (signal?.aborted) return Promise.reject(signal.reason);
    const rid = this.#nextRid++;
    this.#remember();
    return new Promise((resolve, reject) => {
      const entry = { rid, action, serial, noReply, resolve, reject, sent: false, rejects: 0, body: encodeBody(body) };
      if (deadline !== undefined) {
        entry.until = Date.now() + deadline * 1000;
        // The gateway answers at the deadline; this timer is for when no gateway can be reached.
        entry.timer = setTimeout(
          () => this.#abandon(rid, new RequestTimeout(`${action}: no answer in ${deadline} s`, { code: 408 })),
          deadline * 1000 + 2000,
        );
      }
      if (signal) {
        entry.unlisten = () => signal.removeEventListener('abort', entry.abort);
        entry.abort = () => {
          if (entry.sent) this.#send({ t: 'cancel', rid });
          this.#abandon(rid, signal.reason);
        };
        signal.addEventListener('abort', entry.abort);
      }
      this.#requests.set(rid, entry);
      if (this.#welcomed) this.#sendRequest(entry);
    });
  }

  /** Join a group, also again after a lost session. Resolves with the gateway's word, or rejects with RequestRejected. */
  join(group) {
    return this.#member(group, true);
  }

  leave(group) {
    return this.#member(group, false);
  }

  /** Give the gateway a fresh token without reconnecting. */
  authenticate(token) {
    this.#send({ t: 'auth', token });
  }

  /** What was handed out last is handled, without asking for more: before detach(), for one. */
  handled() {
    this.#done();
  }

  /** Drop the connection as a tunnel would; the session reconnects and resumes by itself. */
  cut() {
    this.#drop(4000, 'cut');
  }

  /** Stop here, but leave the session resumable (until its TTL) by a later `resume` or the storage. */
  detach() {
    this.#flushAck();
    this.#remember();
    this.#end(null, { keep: true });
  }

  /** End the session for good: the gateway deletes it. */
  close() {
    this.#flushAck();
    this.#send({ t: 'bye' });
    this.#end(null, { keep: false });
  }

  on(name, listener) {
    if (!EVENTS.has(name)) throw new TypeError(`no event ${name}; there are ${[...EVENTS].join(', ')}`);
    if (name === 'message' && this.#iterating) throw new TypeError('iterate or listen to messages, not both');
    if (!this.#listeners.has(name)) this.#listeners.set(name, new Set());
    this.#listeners.get(name).add(listener);
    if (name === 'message') this.#pump();
    return () => this.#listeners.get(name).delete(listener);
  }

  [Symbol.asyncIterator]() {
    if (this.#iterating) throw new TypeError('this session is being iterated already');
    if (this.#listeners.get('message')?.size) throw new TypeError('iterate or listen to messages, not both');
    this.#iterating = true;
    let over = false;
    return {
      next: async () => {
        this.#done();
        while (!over) {
          if (this.#inbox.length) return { done: false, value: this.#take() };
          if (this.#closed) {
            over = true;
            this.#iterating = false;
            if (this.#closed.error) throw this.#closed.error;
            break;
          }
          await new Promise((resolve) => (this.#wake = resolve));
        }
        return { done: true, value: undefined };
      },
      return: async () => {
        // Not handled yet: only asking for the next one says so.
        over = true;
        this.#iterating = false;
        return { done: true, value: undefined };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  // ---- the connection ----

  async #refresh() {
    if (this.#refreshing || typeof this.#options.token !== 'function') return;
    this.#refreshing = true;
    try {
      this.authenticate(await this.#options.token());
    } catch (cause) {
      this.#emit('error', new GatewayError('the token function failed', { cause, retryable: true }));
    } finally {
      this.#refreshing = false;
    }
  }

  async #connect() {
    this.#retryTimer = undefined;
    this.#setState('connecting');
    let token;
    try {
      token = typeof this.#options.token === 'function' ? await this.#options.token() : this.#options.token;
    } catch (cause) {
      this.#emit('error', new GatewayError('the token function failed', { cause, retryable: true }));
      if (!this.#closed) this.#later();
      return;
    }
    if (this.#closed) return;
    let socket;
    try {
      socket = new this.#WebSocket(this.#urls[this.#turn % this.#urls.length], [PROTOCOL]);
    } catch (cause) {
      this.#end(new SessionClosed(`cannot open ${this.#urls[0]}`, { cause }), { keep: true });
      return;
    }
    this.#socket = socket;
    this.#figures.connections += 1;
    this.#helloTimer = setTimeout(() => this.#drop(4001, 'no welcome'), this.#options.connectTimeout * 1000);
    socket.onopen = () => {
      if (socket !== this.#socket) return socket.close();
      this.#asked = true;
      const hello = {
        t: 'hello',
        version: VERSION,
        token: token ?? '',
        window_messages: this.#options.windowMessages,
        window_bytes: this.#options.windowBytes,
        client: this.#options.client,
        rid_floor: this.#ridFloor(),
      };
      if (this.#sid) hello.resume = { sid: this.#sid, secret: this.#secret, cursor: this.cursor };
      this.#ackedFloor = hello.rid_floor;
      this.#acked = this.#handled; // the cursor says it
      this.#confirmed = this.#handled;
      this.#confirmedTime = this.#handledTime;
      this.#forgetTimes();
      socket.send(JSON.stringify(hello));
      return undefined;
    };
    socket.onmessage = (event) => {
      if (socket !== this.#socket) return;
      this.#lastHeard = Date.now();
      if (typeof event.data !== 'string') return this.#drop(4007, 'a binary message where JSON was agreed');
      for (const line of event.data.split('\n')) {
        if (!line) continue;
        let frame;
        try {
          frame = JSON.parse(line);
        } catch {
          return this.#drop(4007, 'not JSON');
        }
        this.#frame(frame, line.length);
        if (socket !== this.#socket) return undefined;
      }
      return undefined;
    };
    socket.onerror = () => {};
    socket.onclose = (event) => {
      if (socket === this.#socket) this.#lost(event.code, event.reason);
    };
  }

  #drop(code, reason) {
    const socket = this.#socket;
    if (!socket) return;
    this.#lost(code, reason);
    try {
      socket.close(code, reason);
    } catch {
      // a socket that never opened
    }
  }

  #lost(code, reason) {
    clearTimeout(this.#helloTimer);
    clearTimeout(this.#goawayTimer);
    clearInterval(this.#watchTimer);
    clearTimeout(this.#ackTimer);
    this.#ackTimer = undefined;
    if (this.#welcomed && Date.now() - this.#since > 2000) this.#failures = 0;
    if (this.#asked && !this.#welcomed) this.#unwelcomed = [...this.#unwelcomed.slice(-15), Date.now()];
    this.#socket = null;
    this.#asked = false;
    this.#welcomed = false;
    this.#unackedBytes = 0;
    if (this.#closed) return;
    this.#emit('disconnected', { code, reason });
    const fixedToken = typeof this.#options.token !== 'function';
    if (code >= FIRST_DO_NOT_RECONNECT && code < 5000 && !this.#supersededByItself(code)) {
      this.#end(new SessionClosed(`${code} ${reason || CODES[code] || 'closed by the gateway'}`, { code }), { keep: code === 4503 });
    } else if (code === TOKEN_EXPIRED && fixedToken) {
      const text = '4004 the token has expired; give a function as the option token to refresh it';
      this.#end(new SessionClosed(text, { code, retryable: true }), { keep: true });
    } else {
      this.#turn += 1;
      this.#later();
    }
  }

  // A slow gateway attaches a hello after we have given up on it, and so supersedes the connection that came next. Each
  // such hello accounts for one close; any further one means that another holder has the session.
  #supersededByItself(code) {
    if (code !== 4503) return false;
    this.#unwelcomed = this.#unwelcomed.filter((at) => Date.now() - at < LATE_ATTACH);
    return this.#unwelcomed.shift() !== undefined;
  }

  #later() {
    const delay = this.#backoff(this.#failures, this.#retryAfter);
    this.#failures += 1;
    this.#retryAfter = 0;
    this.#setState('waiting', delay);
    this.#retryTimer = setTimeout(() => this.#connect(), delay * 1000);
  }

  /** Seconds before the next try after this number of failures. */
  #backoff(failures, retryAfter) {
    const { backoffBase, backoffMax } = this.#options;
    return retryAfter + Math.random() * Math.min(backoffMax, backoffBase * 2 ** failures);
  }

  #online = () => {
    if (this.#retryTimer !== undefined) {
      clearTimeout(this.#retryTimer);
      this.#failures = 0;
      this.#connect();
    }
  };

  #watch() {
    const now = Date.now();
    if (now - this.#lastHeard > this.#heartbeat + this.#pong + 2000) {
      this.#figures.stalls += 1;
      this.#drop(4001, 'silence');
    } else if (this.#confirmed < this.#top && this.#inbox.length === 0 && this.#current === null) {
      if (now - this.#lastProgress > this.#options.stallTimeout * 1000) {
        this.#figures.stalls += 1;
        this.#drop(4007, 'stalled');
      }
    } else {
      this.#lastProgress = now;
    }
  }

  #send(frame) {
    if (this.#welcomed && this.#socket) this.#socket.send(JSON.stringify(frame));
  }

  #end(error, { keep }) {
    if (this.#closed) return;
    this.#closed = { error };
    clearTimeout(this.#retryTimer);
    const socket = this.#socket;
    this.#lost(1000, '');
    socket?.close(1000);
    globalThis.removeEventListener?.('online', this.#online);
    globalThis.removeEventListener?.('pagehide', this.#remember);
    if (!keep) this.#storage?.removeItem(this.#storageKey);
    for (const rid of [...this.#requests.keys()]) this.#settle(rid, (e) => e.reject(this.#endError()));
    for (const entry of this.#groups.values()) entry.reject?.(this.#endError());
    this.#settleReady.reject(this.#endError());
    this.#setState('closed');
    this.#emit('closed', error);
    this.#wake?.();
  }

  #endError() {
    return this.#closed?.error ?? new SessionClosed('the session was closed here');
  }

  // ---- frames ----

  #frame(frame, size) {
    if (!this.#welcomed && frame.t !== 'welcome' && frame.t !== 'close') return;
    switch (frame.t) {
      case 'welcome':
        this.#welcome(frame);
        break;
      case 'msg':
        this.#message(frame, size);
        break;
      case 'gap':
        this.#gap(frame);
        break;
      case 'accept':
        this.#accepted(frame.rid);
        break;
      case 'reject':
        this.#rejected(frame);
        break;
      case 'ping':
        this.#top = Math.max(this.#top, frame.top ?? 0);
        this.#send({ t: 'pong', echo: frame.echo, seq: this.#toAck });
        this.#acked = Math.max(this.#acked, this.#toAck);
        if (frame.token_expires_ms > 0) this.#refresh();
        break;
      case 'goaway':
        this.#goaway(frame);
        break;
      case 'close':
        this.#retryAfter = (frame.retry_after_ms ?? 0) / 1000;
        this.#closedByGateway(frame.code, frame.reason);
        break;
      case 'vol':
        if (frame.type === 'veredus.group') this.#memberAnswer(frame.body ?? {});
        this.#emit('volatile', { type: frame.type ?? '', body: decodeBody(frame) });
        break;
      default: // a later version's frame: it would not have been sent if it mattered to us
    }
  }

  /** The gateway closes after this frame; its code says what to do, the socket's own may be lost on the way. */
  #closedByGateway(code, reason) {
    const socket = this.#socket;
    this.#lost(code, reason ?? '');
    socket?.close(1000);
  }

  #goaway(frame) {
    const within = frame.reconnect_within_ms ?? 0;
    this.#emit('goaway', { reason: frame.reason ?? '', within: within / 1000 });
    this.#goawayTimer = setTimeout(() => {
      this.#flushAck();
      this.#failures = 0;
      this.#drop(4000, 'goaway');
    }, Math.random() * within);
  }

  #welcome(frame) {
    clearTimeout(this.#helloTimer);
    const before = this.#sid;
    const base = { epoch: '', seq: 0, ts: 0, ...frame.cursor }; // the gateway leaves out what is zero
    this.#sid = frame.sid;
    this.#secret = frame.secret;
    this.#limits = frame.limits ?? {};
    this.#heartbeat = frame.heartbeat_ms || this.#heartbeat;
    this.#pong = frame.pong_ms || this.#pong;
    this.#top = frame.top ?? 0;
    this.#welcomed = true;
    this.#since = Date.now();
    this.#lastProgress = this.#lastHeard = Date.now();
    this.#watchTimer = setInterval(() => this.#watch(), Math.min(1000, this.#options.stallTimeout * 250));
    this.#watchTimer.unref?.();
    if (frame.result === 'resumed') {
      this.#figures.resumes += 1;
      if (this.#received < base.seq) this.#received = this.#confirmed = base.seq;
      if (this.#received > this.#top) this.#fork(this.#top + 1); // the log is shorter than what we have of it
    } else {
      this.#restart(frame, base, before);
    }
    this.#epoch = base.epoch;
    for (const [group, { wanted }] of this.#groups) this.#send({ t: wanted ? 'join' : 'leave', group });
    this.#adopt(frame.open ?? [], before !== frame.sid && frame.result !== 'resumed');
    this.#remember();
    this.#setState('connected');
    this.#emit('connected', { id: this.#sid, result: frame.result, reason: frame.reason ?? '', node: frame.node ?? '' });
    this.#settleReady.resolve(this);
    for (const entry of [...this.#requests.values()].sort((a, b) => a.rid - b.rid)) this.#sendRequest(entry);
  }

  #restart(frame, base, before) {
    // What was received and not yet handled is still handed out, before the discontinuity.
    this.#received = base.seq;
    this.#top = Math.max(base.seq, frame.top ?? 0);
    this.#times.clear();
    this.#handled = this.#confirmed = this.#acked = base.seq;
    this.#handledTime = this.#confirmedTime = base.ts;
    if (!before) return;
    this.#figures.resets += 1;
    this.#push({ kind: 'discontinuity', reason: frame.reason || 'reset', result: frame.result });
  }

  #adopt(open, isNew) {
    if (isNew) {
      this.#orphans.clear();
      for (const entry of [...this.#requests.values()]) {
        if (!entry.sent) continue;
        const text = `${entry.action}: the session of this request is gone; it may or may not have run`;
        this.#settle(entry.rid, (e) => e.reject(new RequestLost(text)));
      }
    } else if (this.#imported) {
      for (const { rid, state } of open) {
        if (!this.#requests.has(rid) && state !== 'done') this.#orphans.add(rid);
        this.#nextRid = Math.max(this.#nextRid, rid + 1);
      }
    }
    this.#imported = false;
  }

  #message(frame, size) {
    const { seq, ts } = frame;
    if (seq <= this.#received) {
      if (!this.#times.has(seq) || this.#times.get(seq) === ts) {
        this.#figures.duplicates += 1;
        if (seq > this.#confirmed) this.#confirm(seq, ts);
        return;
      }
      this.#fork(seq);
    }
    if (seq > this.#received + 1) {
      this.#figures.holes += 1;
      this.#drop(4007, `expected ${this.#received + 1}, got ${seq}`);
      return;
    }
    this.#received = this.#confirmed = seq;
    this.#confirmedTime = ts;
    this.#times.set(seq, ts);
    this.#figures.received += 1;
    this.#lastProgress = Date.now();
    this.#failures = 0;
    const message = {
      kind: frame.kind ?? 'notify',
      seq,
      ts,
      rid: frame.rid ?? 0,
      type: frame.type ?? '',
      title: frame.title ?? '',
      content: frame.content ?? '',
      metadata: frame.metadata ?? {},
      body: decodeBody(frame),
      code: frame.code ?? 0,
      error: frame.error ?? '',
      group: frame.group ?? '',
      syncHint: frame.sync_hint ?? 0,
      bindClientSeqId: frame.bind_client_seq_id ?? 0,
      createTime: frame.create_time ?? 0,
    };
    if (message.kind === 'tombstone') {
      this.#push({ kind: 'gap', from: seq, to: seq, reason: 'expired', seq, ts });
      return;
    }
    const answered = message.kind === 'response' && this.#respond(message);
    this.#push(message, size, answered);
  }

  /** The server lost its tail and numbered anew from here: what we have from there on was replaced. */
  #fork(seq) {
    this.#inbox = this.#inbox.filter((item) => item.seq === undefined || item.seq < seq);
    for (const number of [...this.#times.keys()]) if (number >= seq) this.#times.delete(number);
    this.#received = seq - 1;
    if (this.#handled >= seq || this.#confirmed >= seq) this.#goBack(seq - 1);
    if (this.#inbox.at(-1)?.reason === 'fork') return; // reported already, and nothing came since
    this.#figures.resets += 1;
    this.#push({ kind: 'discontinuity', reason: 'fork', result: 'resumed' });
  }

  /** What was handled or confirmed behind this number is not in the log any more. */
  #goBack(seq) {
    const known = [[this.#handled, this.#handledTime], [this.#confirmed, this.#confirmedTime], ...this.#times];
    const last = known.filter(([number]) => number <= seq).reduce((a, b) => (b[0] > a[0] ? b : a), [0, 0]);
    if (this.#handled > seq) [this.#handled, this.#handledTime] = last;
    if (this.#confirmed > seq) [this.#confirmed, this.#confirmedTime] = last;
    this.#acked = Math.min(this.#acked, this.#toAck);
  }

  /** The gateway's log has what we received up to here. */
  #confirm(seq, ts) {
    this.#confirmed = seq;
    this.#confirmedTime = ts;
    this.#lastProgress = Date.now();
    this.#forgetTimes();
    this.#ackInTime();
  }

  #forgetTimes() {
    for (const number of this.#times.keys()) {
      if (number > this.#toAck) break;
      this.#times.delete(number);
    }
  }

  #gap(frame) {
    const { from, to, ts = 0 } = frame;
    if (to > this.#confirmed && this.#times.has(to) && ts && this.#times.get(to) !== ts) {
      this.#fork(Math.max(from, this.#confirmed + 1));
    }
    if (to <= this.#received) {
      if (to > this.#confirmed) this.#confirm(to, ts);
      return;
    }
    if (from > this.#received + 1) {
      this.#figures.holes += 1;
      this.#drop(4007, `expected ${this.#received + 1}, got a gap from ${from}`);
      return;
    }
    const first = this.#received + 1;
    this.#received = to;
    this.#confirm(to, ts);
    this.#figures.gaps += 1;
    this.#times.set(to, ts);
    this.#push({ kind: 'gap', from: first, to, reason: frame.reason ?? '', seq: to, ts });
  }

  // ---- groups ----

  #member(group, wanted) {
    if (this.#closed) return Promise.reject(this.#endError());
    const known = this.#groups.get(group);
    const entry = { wanted, promise: known?.promise };
    if (!entry.promise) {
      entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
      entry.promise.catch(() => {}); // without a reader, the failure is of no interest
    } else {
      Object.assign(entry, { resolve: known.resolve, reject: known.reject });
    }
    this.#groups.set(group, entry);
    this.#askMember(group, entry);
    return entry.promise;
  }

  #askMember(group, entry) {
    if (this.#closed || this.#groups.get(group) !== entry) return;
    this.#send({ t: entry.wanted ? 'join' : 'leave', group });
    setTimeout(() => this.#askMember(group, entry), 1000); // the answer is volatile: it may be dropped on its way
  }

  #memberAnswer({ group, joined, code, error }) {
    const entry = this.#groups.get(group);
    if (!entry) return;
    if (RETRYABLE.has(code)) {
      // The gateway could not say. A caller that waits for the answer asks again anyway.
      if (!entry.promise && !entry.asking) {
        entry.asking = true;
        setTimeout(() => this.#askMember(group, entry), 1000);
      }
    } else if (code) {
      this.#groups.delete(group); // it will not be asked again
      entry.reject?.(new RequestRejected(`group ${group}: ${error || 'refused'}`, { code }));
    } else if (Boolean(joined) === entry.wanted) {
      entry.resolve?.();
      this.#groups.set(group, { wanted: entry.wanted });
    }
  }

  // ---- requests ----

  #sendRequest(entry) {
    entry.sent = true;
    const frame = { t: 'request', rid: entry.rid, action: entry.action, ...entry.body };
    if (entry.until !== undefined) frame.deadline_ms = Math.max(1, Math.round(entry.until - Date.now()));
    if (entry.serial) frame.serial = true;
    if (entry.noReply) frame.no_reply = true;
    const text = JSON.stringify(frame);
    const most = this.#limits.max_frame ?? Infinity;
    if (text.length * 3 > most && new TextEncoder().encode(text).length > most) {
      const problem = `${entry.action}: the request has more than the ${most} bytes that the gateway takes`;
      this.#settle(entry.rid, (e) => e.reject(new RequestRejected(problem, { code: 413 })));
      return;
    }
    this.#socket.send(text);
  }

  /** Nothing came of it. What may succeed later is sent again under the same number, so often and until its deadline. */
  #rejected(frame) {
    const entry = this.#requests.get(frame.rid);
    if (!entry) {
      this.#orphans.delete(frame.rid);
      return;
    }
    const retryAfter = (frame.retry_after_ms ?? 0) / 1000;
    const delay = this.#backoff(entry.rejects, retryAfter) * 1000;
    entry.rejects += 1;
    if (frame.retryable && entry.rejects <= this.#options.retries && !(Date.now() + delay >= entry.until)) {
      entry.sent = false;
      entry.again = setTimeout(() => {
        if (this.#welcomed && !entry.sent) this.#sendRequest(entry);
      }, delay);
      return;
    }
    const { code } = frame;
    const text = `${entry.action}: ${frame.error || code}`;
    this.#settle(frame.rid, (e) => e.reject(new RequestRejected(text, { code, retryable: Boolean(frame.retryable), retryAfter })));
  }

  #accepted(rid) {
    const entry = this.#requests.get(rid);
    if (entry?.noReply) this.#settle(rid, (e) => e.resolve(undefined));
  }

  #respond(message) {
    this.#orphans.delete(message.rid);
    return this.#settle(message.rid, (entry) => {
      if (message.code === 0) return entry.resolve(message.body);
      const { code } = message;
      const error = new RequestFailed(`${entry.action}: ${message.error || code}`, { code, retryable: RETRYABLE.has(code) });
      error.body = message.body;
      return entry.reject(error);
    });
  }

  #settle(rid, how) {
    const entry = this.#requests.get(rid);
    if (!entry) return false;
    this.#requests.delete(rid);
    clearTimeout(entry.timer);
    clearTimeout(entry.again);
    entry.unlisten?.();
    how(entry);
    return true;
  }

  /** Its promise is over; its response will still come, as a message. */
  #abandon(rid, error) {
    if (this.#requests.get(rid)?.sent) this.#orphans.add(rid);
    this.#settle(rid, (entry) => entry.reject(error));
  }

  /** All requests up to here have their answer: the gateway may forget them. */
  #ridFloor() {
    let floor = this.#nextRid - 1;
    for (const rid of this.#requests.keys()) floor = Math.min(floor, rid - 1);
    for (const rid of this.#orphans) floor = Math.min(floor, rid - 1);
    this.#floor = Math.max(this.#floor, floor);
    return this.#floor;
  }

  // ---- handing out and acknowledging ----

  #push(item, size = 0, answered = false) {
    this.#sizes.set(item, size);
    if (answered) this.#answered.add(item);
    this.#inbox.push(item);
    if (this.#wake) {
      const wake = this.#wake;
      this.#wake = null;
      wake();
    }
    if (this.#listeners.get('message')?.size) this.#pump();
    else if (!this.#iterating) this.#skipAnswered();
  }

  #skipAnswered() {
    // Nobody reads messages: responses that went to their promise must not fill the window.
    while (this.#current === null && this.#inbox.length && this.#answered.has(this.#inbox[0])) {
      this.#take();
      this.#done();
    }
  }

  #take() {
    this.#done();
    const item = this.#inbox.shift();
    this.#current = item;
    if (item.kind === 'gap' || item.kind === 'discontinuity') this.#emit(item.kind, item);
    return item;
  }

  #done() {
    const item = this.#current;
    if (item === null) return;
    this.#current = null;
    // Not so for what came before a discontinuity: those numbers mean nothing now.
    if (item.kind !== 'discontinuity' && this.#times.get(item.seq) === item.ts) {
      this.#handled = item.seq;
      this.#handledTime = item.ts;
      this.#unackedBytes += this.#sizes.get(item);
      if (item.seq <= this.#confirmed) this.#times.delete(item.seq);
    }
    this.#ackInTime();
  }

  get #toAck() {
    return Math.min(this.#handled, this.#confirmed);
  }

  #ackInTime() {
    const { ackMessages, ackBytes, ackDelay, windowMessages } = this.#options;
    const unacked = this.#toAck - this.#acked;
    if (unacked >= Math.min(ackMessages, windowMessages / 4) || this.#unackedBytes >= ackBytes) this.#flushAck();
    else if (unacked > 0 && this.#ackTimer === undefined) {
      this.#ackTimer = setTimeout(() => this.#flushAck(), ackDelay * 1000);
    }
  }

  #flushAck() {
    clearTimeout(this.#ackTimer);
    this.#ackTimer = undefined;
    const floor = this.#ridFloor();
    // A pong tells the number and not the floor, so there may be the floor alone to tell.
    if (!this.#welcomed || (this.#toAck <= this.#acked && floor <= this.#ackedFloor)) return;
    this.#acked = this.#toAck;
    this.#ackedFloor = floor;
    this.#unackedBytes = 0;
    this.#send({ t: 'ack', seq: this.#acked, rid_floor: floor });
    this.#remember();
  }

  async #pump() {
    if (this.#pumping) return;
    this.#pumping = true;
    try {
      while (this.#inbox.length && this.#listeners.get('message')?.size) {
        const item = this.#take();
        if (item.kind !== 'gap' && item.kind !== 'discontinuity') {
          for (const listener of [...this.#listeners.get('message')]) {
            try {
              const result = listener(item);
              if (typeof result?.then === 'function') await result;
            } catch (error) {
              this.#emit('error', error);
            }
          }
        }
        this.#done();
      }
    } finally {
      this.#pumping = false;
    }
  }

  #emit(name, value) {
    const listeners = this.#listeners.get(name);
    if (!listeners?.size) {
      if (name === 'error') console.error('veredus:', value);
      return;
    }
    for (const listener of [...listeners]) {
      try {
        listener(value);
      } catch (error) {
        console.error(`veredus: a listener of ${name} failed:`, error);
      }
    }
  }

  #setState(state, delay) {
    this.#state = state;
    this.#emit('state', delay === undefined ? { state } : { state, delay });
  }

  // ---- surviving a reload ----

  #remember = () => {
    if (!this.#storage || !this.#sid || this.#closed) return;
    try {
      this.#storage.setItem(this.#storageKey, JSON.stringify(this.export()));
    } catch {
      // storage may be full or forbidden: then a reload starts a new session
    }
  };

  #restore() {
    try {
      const text = this.#storage?.getItem(this.#storageKey);
      if (text) this.#import(JSON.parse(text));
    } catch {
      this.#storage?.removeItem(this.#storageKey);
    }
  }

  #import({ sid, secret, cursor, rid }) {
    const { epoch = '', seq = 0, ts = 0 } = cursor ?? {};
    const numbers = [seq ?? 0, ts ?? 0]; // an earlier version of this module stored null where nothing was handled
    if (typeof sid !== 'string' || typeof secret !== 'string' || !cursor || !numbers.every(Number.isSafeInteger)) {
      throw new TypeError('resume: expected what export() returned');
    }
    this.#imported = true;
    this.#sid = sid;
    this.#secret = secret;
    this.#epoch = epoch;
    this.#received = this.#handled = this.#acked = numbers[0];
    this.#handledTime = numbers[1];
    this.#nextRid = Number.isSafeInteger(rid) && rid > 0 ? rid : 1;
  }
}

const KNOWN = new Set(['token', 'storage', 'storageKey', 'resume', 'WebSocket']);
const EVENTS = new Set([
  'message', 'gap', 'discontinuity', 'volatile', 'state', 'connected', 'disconnected', 'goaway', 'closed', 'error',
]);
const CODES = {
  4500: 'bad frame',
  4501: 'unauthorized',
  4502: 'no hello in time',
  4503: 'superseded by another connection',
  4504: 'session closed',
  4506: 'version not supported',
  4507: 'origin forbidden',
  4508: 'too large',
};

function checkUrl(url) {
  const text = String(url);
  if (!/^wss?:\/\//.test(text)) throw new TypeError(`url: got ${text}, expected an address such as ws://127.0.0.1:8765`);
  return text;
}

function encodeBody(body) {
  if (body === undefined) return {};
  if (!(body instanceof Uint8Array)) return { body };
  let text = '';
  for (let at = 0; at < body.length; at += 8192) text += String.fromCharCode(...body.subarray(at, at + 8192));
  return { body64: btoa(text) };
}

function decodeBody(frame) {
  if (frame.body64 === undefined) return frame.body;
  return Uint8Array.from(atob(frame.body64), (character) => character.charCodeAt(0));
}
