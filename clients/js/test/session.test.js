// One job: the promises of a session, each broken on purpose by a scripted gateway.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { connect, RequestFailed, RequestLost, RequestRejected, RequestTimeout, Session, SessionClosed } from '../veredus.js';
import { ScriptedGateway } from './gateway.js';

const QUICK = { backoffBase: 0.01, backoffMax: 0.05, ackDelay: 0.01 };

async function open(t, options = {}, prepare = () => {}) {
  const gateway = await new ScriptedGateway().start();
  prepare(gateway);
  t.after(() => gateway.stop());
  const session = await connect(gateway.url, { token: 'ada', ...QUICK, ...options });
  t.after(() => session.detach());
  return { gateway, session };
}

async function until(reached, what = String(reached)) {
  const give_up = Date.now() + 5000;
  while (!reached()) {
    assert.ok(Date.now() < give_up, `never: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

async function take(session, count) {
  const items = [];
  for await (const item of session) {
    items.push(item);
    if (items.length === count) break;
  }
  return items;
}

const once = (session, name) => new Promise((resolve) => {
  const off = session.on(name, (value) => {
    off();
    resolve(value);
  });
});

test('a request is answered, a failure is an error with its code', async (t) => {
  const { session } = await open(t, {}, (g) => {
    g.actions.fail = (code) => {
      throw Object.assign(new Error('no paper'), { code });
    };
  });
  assert.deepEqual(await session.request('echo', { a: [1, 'ü', null] }), { a: [1, 'ü', null] });
  for (const [code, retryable] of [[503, true], [408, true], [500, false]]) {
    await assert.rejects(session.request('fail', code), (e) => e instanceof RequestFailed && e.code === code && e.retryable === retryable);
  }
  await assert.rejects(session.request('echo', 'ü'.repeat(40_000)), (e) => e instanceof RequestRejected && e.code === 413);
  await assert.rejects(session.request('nope'), (e) => e instanceof RequestRejected && e.code === 404 && !e.retryable);
});

test('messages come in order with every field, and are acknowledged when the next is asked for', async (t) => {
  const { gateway, session } = await open(t);
  gateway.push({
    type: 'mail', title: 'T', content: 'C', metadata: { k: 'v' }, body: { n: 1 }, group: 'g', sync_hint: 2,
    bind_client_seq_id: 123, create_time: 99, kind: 'group',
  });
  for (let n = 2; n <= 40; n += 1) gateway.push({ body: n });
  const iterator = session[Symbol.asyncIterator]();
  const { value: first } = await iterator.next();
  assert.deepEqual(first, {
    kind: 'group', seq: 1, ts: 1000, rid: 0, type: 'mail', title: 'T', content: 'C', metadata: { k: 'v' }, body: { n: 1 },
    code: 0, error: '', group: 'g', syncHint: 2, bindClientSeqId: 123, createTime: 99,
  });
  assert.equal(session.cursor.seq, 0);
  for (let n = 2; n <= 40; n += 1) assert.equal((await iterator.next()).value.body, n);
  assert.equal(session.cursor.seq, 39);
  await until(() => gateway.session.acked === 39);
});

test('raw bodies are bytes both ways', async (t) => {
  const { gateway, session } = await open(t);
  gateway.actions.bytes = (body, s, frame) => frame.body64;
  const sent = Uint8Array.from({ length: 20000 }, (_, i) => i % 256);
  assert.equal(await session.request('bytes', sent), Buffer.from(sent).toString('base64'));
  gateway.push({ body64: 'AP8=' });
  for await (const message of session) {
    if (message.kind === 'notify') {
      assert.deepEqual(message.body, Uint8Array.of(0, 255));
      break;
    }
  }
});

test('a listener is awaited before the next message, and what it throws is reported', async (t) => {
  const { gateway, session } = await open(t);
  const seen = [];
  const errors = [];
  session.on('error', (error) => errors.push(error.message));
  session.on('message', async (message) => {
    await new Promise((resolve) => setTimeout(resolve, 3));
    seen.push(message.seq);
    if (message.seq === 2) throw new Error('two');
  });
  for (let n = 0; n < 5; n += 1) gateway.push({ body: n });
  await until(() => gateway.session.acked === 5);
  assert.deepEqual(seen, [1, 2, 3, 4, 5]);
  assert.deepEqual(errors, ['two']);
  assert.throws(() => session[Symbol.asyncIterator](), /not both/);
});

test('cut in the middle: resumed with the rotated secret, nothing missing, nothing twice', async (t) => {
  const { gateway, session } = await open(t);
  const seen = [];
  session.on('message', (message) => void seen.push(message.seq));
  for (let round = 0; round < 5; round += 1) {
    const secret = gateway.session.secrets[0];
    for (let n = 0; n < 10; n += 1) gateway.push({ body: n });
    if (round % 2) gateway.killAll();
    else session.cut();
    gateway.push({ body: 'while away' });
    await until(() => gateway.hellos.length === round + 2);
    assert.equal(gateway.hellos.at(-1).resume.secret, secret);
    await until(() => seen.length === 11 * (round + 1));
  }
  assert.deepEqual(seen, Array.from({ length: 55 }, (_, i) => i + 1));
  assert.equal(session.stats.resumes, 5);
});

test('copies are dropped, also of what is received and not yet handled', async (t) => {
  const { gateway, session } = await open(t);
  gateway.push({ body: 'a' });
  gateway.push({ body: 'b' });
  await until(() => session.stats.received_seq === 2);
  gateway.session.wire.send(gateway.session.log.get(1), gateway.session.log.get(2));
  session.cut(); // the cursor is still 0: both are replayed
  await until(() => session.stats.resumes === 1);
  gateway.push({ body: 'c' });
  assert.deepEqual((await take(session, 3)).map((m) => m.body), ['a', 'b', 'c']);
  assert.ok(session.stats.duplicates >= 2);
});

test('a hole is not handed out: the session resumes from before it', async (t) => {
  const { gateway, session } = await open(t);
  gateway.push({ body: 1 });
  gateway.session.mute = true;
  gateway.push({ body: 2 });
  gateway.session.mute = false;
  gateway.push({ body: 3 });
  assert.deepEqual((await take(session, 3)).map((m) => m.seq), [1, 2, 3]);
  assert.equal(session.stats.holes, 1);
});

test('a request is sent again after a lost connection, run once, answered once', async (t) => {
  const { gateway, session } = await open(t);
  gateway.deaf = true;
  const answers = [session.request('echo', 1), session.request('echo', 2)];
  await until(() => gateway.requests.length === 2);
  gateway.deaf = false;
  gateway.killAll();
  assert.deepEqual(await Promise.all(answers), [1, 2]);
  gateway.actions.slow = async (body) => {
    gateway.killAll();
    await until(() => gateway.requests.filter((r) => r.action === 'slow').length === 2);
    return body;
  };
  assert.equal(await session.request('slow', 3), 3);
  assert.deepEqual(gateway.ran, [1, 2, 3]);
  session.on('message', () => {});
  await until(() => gateway.session.acked === 3 && gateway.session.ridFloor === 3);
});

test('who only asks and never reads messages is not stopped by the window', async (t) => {
  const { gateway, session } = await open(t);
  for (let n = 0; n < 300; n += 1) await session.request('echo', n);
  await until(() => gateway.session.acked === 300);
});

test('a lost session is a discontinuity; sent requests are lost, unsent ones go to the new session', async (t) => {
  const { gateway, session } = await open(t);
  await session.join('room');
  await assert.rejects(session.join('secret'), (e) => e instanceof RequestRejected && e.code === 403);
  await session.leave('room');
  await session.join('room');
  gateway.push({ body: 'old' });
  await until(() => session.stats.received_seq === 1);
  gateway.deaf = true;
  const lost = session.request('echo', 1);
  await until(() => gateway.requests.length === 1);
  gateway.deaf = false;
  gateway.sessions.clear();
  gateway.killAll();
  await assert.rejects(lost, RequestLost);
  assert.equal(await session.request('echo', 2), 2);
  gateway.push({ body: 'new' });
  const items = await take(session, 4);
  assert.deepEqual(items.map((i) => i.kind), ['notify', 'discontinuity', 'response', 'notify']);
  assert.equal(items[1].reason, 'unknown');
  assert.deepEqual(gateway.frames.filter((f) => f.t === 'join').map((f) => f.group), ['room', 'secret', 'room', 'room']);
});

test('a reset of the same session goes on in the new epoch, and the cursor with it', async (t) => {
  const { gateway, session } = await open(t);
  const events = [];
  session.on('discontinuity', (event) => events.push(event.reason));
  for (let n = 0; n < 3; n += 1) gateway.push({ body: n });
  await until(() => session.stats.received_seq === 3);
  gateway.resets = 'fork';
  gateway.killAll();
  await until(() => session.stats.resets === 1);
  gateway.killAll(); // before the application saw anything of it
  await until(() => session.stats.resumes === 1);
  assert.equal(gateway.hellos.at(-1).resume.cursor.epoch, gateway.session.epoch);
  gateway.push({ body: 'after' });
  const items = await take(session, 8);
  assert.deepEqual(items.map((i) => i.seq), [1, 2, 3, undefined, 1, 2, 3, 4]);
  assert.deepEqual(events, ['fork']);
});

test('the same number with another time is a fork, not a copy', async (t) => {
  const { gateway, session } = await open(t);
  for (let n = 1; n <= 3; n += 1) gateway.push({ body: `old ${n}` });
  await until(() => session.stats.received_seq === 3);
  gateway.session.top = 1;
  gateway.session.mute = true;
  gateway.push({ body: 'new 2', ts: 7777 });
  gateway.session.mute = false;
  gateway.session.log.delete(3);
  gateway.killAll();
  await until(() => session.stats.resumes === 1);
  const items = await take(session, 3);
  assert.deepEqual(items.map((i) => i.body ?? i.reason), ['old 1', 'fork', 'new 2']);
});

test('what came before a failover acknowledges nothing that came after it', async (t) => {
  const { gateway, session } = await open(t, { ackDelay: 0.01 });
  for (let n = 1; n <= 3; n += 1) gateway.push({ body: `old ${n}` });
  await until(() => session.stats.received_seq === 3);
  gateway.session.top = 2;
  gateway.session.log.delete(3);
  gateway.session.mute = true;
  gateway.push({ body: 'new 3', ts: 7777 });
  gateway.held = []; // the replay is on its way
  gateway.killAll();
  await until(() => session.stats.resumes === 1);
  const seen = [];
  session.on('message', (item) => seen.push(item.body ?? item.reason));
  await until(() => session.stats.handled_seq === 3);
  gateway.session.wire.send({ t: 'ping', echo: 1, top: 3 });
  await until(() => gateway.session.ponged?.echo === 1);
  assert.equal(gateway.session.ponged.seq ?? 0, 0);
  assert.equal(gateway.session.acked, 0);
  gateway.session.wire.send(...gateway.held);
  await until(() => gateway.session.acked === 3);
  assert.deepEqual(seen.filter((text) => text !== 'fork'), ['old 1', 'old 2', 'old 3', 'new 3']);
  assert.equal(session.stats.resets, 1);
  assert.equal(session.cursor.ts, 7777);
});

test('what came again after a resume is acknowledged, handled before or not', async (t) => {
  const { gateway, session } = await open(t, { ackDelay: 0.01 });
  for (let n = 1; n <= 3; n += 1) gateway.push({ body: n });
  await until(() => session.stats.received_seq === 3);
  gateway.held = [];
  gateway.killAll();
  await until(() => session.stats.resumes === 1);
  await take(session, 3); // the third is in hand
  assert.deepEqual([session.stats.handled_seq, gateway.session.acked], [2, 0]);
  gateway.session.wire.send(...gateway.held);
  await until(() => gateway.session.acked === 2);
  session.on('message', () => {});
  gateway.push({ body: 4 });
  await until(() => gateway.session.acked === 4);
  assert.deepEqual([session.stats.resets, session.stats.duplicates], [0, 3]);
});

test('a log shorter than what we have of it is a fork too', async (t) => {
  const { gateway, session } = await open(t);
  for (let n = 1; n <= 3; n += 1) gateway.push({ body: `old ${n}` });
  const [first] = await take(session, 1);
  await until(() => session.stats.received_seq === 3);
  gateway.session.top = 1;
  gateway.session.log.delete(2);
  gateway.session.log.delete(3);
  gateway.killAll();
  await until(() => session.stats.resumes === 1);
  gateway.push({ body: 'new 2', ts: 7777 });
  const items = await take(session, 2);
  assert.deepEqual([first, ...items].map((i) => i.body ?? i.reason), ['old 1', 'fork', 'new 2']);
});

test('messages dropped by policy are a gap, in their place', async (t) => {
  const { gateway, session } = await open(t);
  gateway.push({ body: 1 });
  gateway.session.wire.send({ t: 'gap', from: 2, to: 5, reason: 'drop_oldest', ts: 5000 });
  gateway.session.top = 5;
  gateway.push({ body: 6 });
  gateway.session.wire.send({ t: 'gap', from: 2, to: 5, reason: 'drop_oldest', ts: 5000 }); // a copy
  gateway.push({ kind: 'tombstone' });
  const items = await take(session, 4);
  assert.deepEqual(items[1], { kind: 'gap', from: 2, to: 5, reason: 'drop_oldest', seq: 5, ts: 5000 });
  assert.deepEqual(items[3], { kind: 'gap', from: 7, to: 7, reason: 'expired', seq: 7, ts: 7000 });
  assert.deepEqual(items.map((i) => i.seq), [1, 5, 6, 7]);
});

test('a code above 4500 ends the session without another try', async (t) => {
  const gateway = await new ScriptedGateway().start();
  t.after(() => gateway.stop());
  gateway.refuse = { code: 4501 };
  await assert.rejects(connect(gateway.url, QUICK), (e) => e instanceof SessionClosed && e.code === 4501);
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(gateway.hellos.length, 1);
});

test('a hello attached too late supersedes its own session, which comes back', async (t) => {
  const { gateway, session } = await open(t, { connectTimeout: 1 });
  gateway.silent = true;
  gateway.killAll();
  await until(() => gateway.hellos.length === 2); // resumes, and gives up on this hello: no welcome comes
  gateway.silent = false;
  await until(() => session.stats.resumes === 1);
  gateway.session.wire.close(4503); // the slow gateway has attached that hello now
  await until(() => session.stats.resumes === 2);
  gateway.session.wire.close(4503); // this time it must have been somebody else
  await assert.rejects(take(session, 1), (e) => e.code === 4503);
});

test('superseded while iterating: the iteration throws', async (t) => {
  const { gateway, session } = await open(t);
  gateway.push({ body: 1 });
  setTimeout(() => gateway.session.wire.close(4503), 20);
  const seen = [];
  await assert.rejects(async () => {
    for await (const message of session) seen.push(message.body);
  }, (e) => e.code === 4503);
  assert.deepEqual(seen, [1]);
});

test('retry_after is waited', async (t) => {
  const gateway = await new ScriptedGateway().start();
  t.after(() => gateway.stop());
  gateway.refuse = { code: 4005, times: 1 };
  gateway.retryAfter = 150;
  const began = Date.now();
  const session = await connect(gateway.url, QUICK);
  assert.ok(Date.now() - began >= 145);
  const waiting = once(session, 'state'); // it was for that one time
  session.cut();
  assert.ok((await waiting).delay < 0.1);
  session.close();
});

test('an expired token is fetched anew; a fixed one ends the session', async (t) => {
  let count = 0;
  const { gateway, session } = await open(t, { token: async () => `t${(count += 1)}` });
  gateway.session.wire.close(4004);
  await until(() => session.stats.resumes === 1);
  assert.deepEqual(gateway.hellos.map((h) => h.token), ['t1', 't2']);
  gateway.session.wire.send({ t: 'ping', echo: 1, top: 0, token_expires_ms: 60000 });
  await until(() => gateway.frames.some((f) => f.t === 'auth' && f.token === 't3'));
  const fixed = await connect(gateway.url, { token: 'x', ...QUICK });
  gateway.session.wire.close(4004);
  await assert.rejects(take(fixed, 1), (e) => e.code === 4004);
});

test('a second gateway takes over when the first is gone', async (t) => {
  const { gateway, session: _ } = await open(t);
  const other = await new ScriptedGateway().start();
  t.after(() => other.stop());
  other.sessions = gateway.sessions; // as in Redis
  const session = await connect([gateway.url, other.url], { ...QUICK, token: 'bob' });
  t.after(() => session.detach());
  gateway.push({ body: 1 });
  await gateway.stop();
  other.push({ body: 2 });
  assert.deepEqual((await take(session, 2)).map((m) => m.body), [1, 2]);
  gateway.server.listen(gateway.port);
});

test('goaway: the session moves by itself', async (t) => {
  const { gateway, session } = await open(t);
  const told = once(session, 'goaway');
  gateway.session.wire.send({ t: 'goaway', reconnect_within_ms: 30, reason: 'drain' });
  assert.deepEqual(await told, { reason: 'drain', within: 0.03 });
  await until(() => session.stats.resumes === 1);
});

test('pings are answered with the handled number; more than was received and silence is a stall', async (t) => {
  const { gateway, session } = await open(t, { stallTimeout: 0.1 });
  gateway.push({ body: 1 });
  await take(session, 1);
  gateway.session.mute = true;
  gateway.push({ body: 2 });
  gateway.session.mute = false;
  gateway.session.wire.send({ t: 'ping', echo: 7, top: 2 });
  await until(() => gateway.session.ponged?.echo === 7);
  const [second] = await take(session, 1);
  assert.equal(second.body, 2);
  assert.equal(session.stats.stalls, 1);
});

test('a ping does not swallow the word about answered requests', async (t) => {
  const { gateway, session } = await open(t, { ackDelay: 0.05 });
  await session.request('echo', 1);
  gateway.session.wire.send({ t: 'ping', echo: 1, top: 1 }); // its pong acknowledges the message, not the answer
  await until(() => gateway.frames.some((f) => f.t === 'ack' && f.rid_floor === 1));
});

test('a request that nobody waits for any more holds the floor until its answer is there', async (t) => {
  const { gateway, session } = await open(t);
  let answer;
  gateway.actions.later = () => new Promise((resolve) => (answer = resolve));
  const controller = new AbortController();
  const aborted = session.request('later', 1, { signal: controller.signal });
  await until(() => answer);
  controller.abort();
  await assert.rejects(aborted, { name: 'AbortError' });
  assert.equal(await session.request('echo', 2), 2);
  await until(() => gateway.frames.some((f) => f.t === 'ack'));
  assert.ok(gateway.frames.filter((f) => f.t === 'ack').every((f) => f.rid_floor === 0));
  answer(1);
  await take(session, 1); // it comes as a message
  session.handled();
  await until(() => gateway.frames.some((f) => f.t === 'ack' && f.rid_floor === 2));
});

test('open requests of an earlier page keep their numbers, and the floor below them', async (t) => {
  const { gateway, session } = await open(t);
  let answer;
  gateway.actions.later = () => new Promise((resolve) => (answer = resolve));
  session.request('later', 1).catch(() => {});
  await until(() => answer);
  session.detach();
  const page = await connect(gateway.url, { ...QUICK, resume: { ...session.export(), rid: 1 } }); // saved before it asked
  t.after(() => page.detach());
  assert.equal(await page.request('echo', 2), 2);
  assert.deepEqual(gateway.ran, [1, 2]);
  await until(() => gateway.frames.some((f) => f.t === 'ack'));
  assert.ok(gateway.frames.filter((f) => f.t === 'ack').every((f) => f.rid_floor === 0));
});

test('much that was handled is acknowledged at once', async (t) => {
  const { gateway, session } = await open(t, { ackDelay: 600 });
  gateway.push({ body: 'small' });
  gateway.push({ body: 'x'.repeat(20_000) });
  await take(session, 2);
  assert.equal(gateway.session.acked, 0);
  session.handled();
  await until(() => gateway.session.acked === 2);
});

test('a request without reply is settled when the gateway has it', async (t) => {
  const { gateway, session } = await open(t);
  assert.equal(await session.request('echo', 1, { noReply: true }), undefined);
  assert.equal(gateway.requests[0].no_reply, true);
  assert.equal(session.stats.open_requests, 0);
});

test('a deadline goes on while a request has no connection', async (t) => {
  const { gateway, session } = await open(t);
  gateway.deaf = true;
  const pending = session.request('echo', 1, { deadline: 5 });
  pending.catch(() => {});
  await until(() => gateway.requests.length === 1);
  session.cut();
  await until(() => gateway.requests.length === 2);
  const [first, second] = gateway.requests.map((request) => request.deadline_ms);
  assert.ok(first <= 5000 && second < first, `${first}, then ${second}`);
});

test('a token function that fails is asked again', async (t) => {
  let count = 0;
  const token = () => {
    count += 1;
    if (count === 1) throw new Error('no network yet');
    return 'ada';
  };
  const gateway = await new ScriptedGateway().start();
  t.after(() => gateway.stop());
  const session = new Session(gateway.url, { ...QUICK, token });
  t.after(() => session.detach());
  session.on('error', () => {});
  await session.ready;
  assert.deepEqual(gateway.hellos.map((h) => h.token), ['ada']);
});

test('an end rejects whoever waits to join a group', async (t) => {
  const { gateway, session } = await open(t);
  gateway.session.wire.send = () => {}; // no answer will come
  const joining = session.join('room');
  session.close();
  await assert.rejects(joining, SessionClosed);
});

test('superseded, the storage is kept for the page that has the session now', async (t) => {
  for (const [code, size] of [[4503, 1], [4504, 0]]) {
    const kept = new Map();
    const storage = {
      getItem: (key) => kept.get(key) ?? null,
      setItem: (key, value) => void kept.set(key, value),
      removeItem: (key) => void kept.delete(key),
    };
    const { gateway, session } = await open(t, { storage });
    const closed = once(session, 'closed');
    gateway.session.wire.close(code);
    assert.equal((await closed).code, code);
    assert.equal(kept.size, size);
  }
});

test('a gateway that accepts and never welcomes is left', async (t) => {
  const gateway = await new ScriptedGateway().start();
  t.after(() => gateway.stop());
  gateway.silent = true;
  const session = new Session(gateway.url, { ...QUICK, connectTimeout: 0.05 });
  await until(() => gateway.hellos.length >= 3);
  gateway.silent = false;
  await session.ready;
  session.close();
});

test('abort cancels, a deadline without any gateway times out, both locally', async (t) => {
  const { gateway, session } = await open(t);
  gateway.deaf = true;
  const controller = new AbortController();
  const aborted = session.request('echo', 1, { signal: controller.signal, deadline: 5, serial: true });
  await until(() => gateway.requests.length === 1);
  assert.equal(gateway.requests[0].serial, true);
  assert.ok(gateway.requests[0].deadline_ms > 4900);
  controller.abort();
  await assert.rejects(aborted, { name: 'AbortError' });
  await until(() => gateway.frames.some((f) => f.t === 'cancel' && f.rid === 1));
  await assert.rejects(session.request('echo', 2, { deadline: 0.05 }), RequestTimeout);
  await assert.rejects(session.request('echo', 2, { deadline: -1 }), TypeError);
});

test('a page reload resumes from the storage, without reusing request numbers', async (t) => {
  const kept = new Map();
  const storage = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => void kept.set(key, value),
    removeItem: (key) => void kept.delete(key),
  };
  const { gateway, session } = await open(t, { storage });
  await session.request('echo', 1);
  gateway.push({ body: 'seen' });
  await take(session, 1); // handed out, not handled: comes again
  session.detach();
  const page = await connect(gateway.url, { storage, ...QUICK });
  gateway.push({ body: 'next' });
  assert.equal(page.id, session.id);
  assert.equal(await page.request('echo', 2), 2);
  assert.deepEqual(gateway.ran, [1, 2]);
  assert.deepEqual((await take(page, 3)).map((m) => m.body), ['seen', 'next', 2]);
  page.close();
  assert.equal(kept.size, 0);
  await until(() => gateway.sessions.size === 0);
});

test('export and resume in another process; wrong input is named', async (t) => {
  const { gateway, session } = await open(t);
  gateway.push({ body: 1 });
  const saved = JSON.parse(JSON.stringify(session.export()));
  session.detach();
  const other = await connect(gateway.url, { resume: saved, ...QUICK });
  assert.deepEqual((await take(other, 1)).map((m) => m.body), [1]);
  other.close();
  assert.throws(() => new Session(gateway.url, { resume: { sid: 1 } }), /resume/);
  assert.throws(() => new Session('http://x'), /ws:\/\//);
  assert.throws(() => new Session(gateway.url, { tokn: 'x' }), /unknown option tokn/);
  assert.throws(() => session.on('mesage', () => {}), /no event mesage/);
});

test('a request that was rejected as retryable is sent again under its number, so often and no more', async (t) => {
  const { gateway, session } = await open(t, { retries: 3 });
  gateway.rejects = 3;
  assert.equal(await session.request('echo', 1), 1);
  assert.deepEqual(gateway.requests.map((frame) => frame.rid), [1, 1, 1, 1]);
  gateway.rejects = 10;
  await assert.rejects(session.request('echo', 2), (e) => e instanceof RequestRejected && e.code === 503 && e.retryAfter === 0.005);
  assert.equal(gateway.rejects, 6);
  await assert.rejects(session.request('echo', 3, { deadline: 0.001 }), (e) => e instanceof RequestRejected && e.code === 503);
  assert.equal(gateway.rejects, 5, 'its deadline comes before the next try');
  gateway.rejects = 0;
  assert.equal(await session.request('echo', 4), 4);
});

test('a rejected request is not lost with its session', async (t) => {
  const { gateway, session } = await open(t, { backoffBase: 0.3, backoffMax: 0.3 });
  gateway.rejects = 1;
  const reply = session.request('echo', 'x');
  await until(() => gateway.requests.length === 1);
  await new Promise((resolve) => setTimeout(resolve, 5));
  gateway.sessions.clear();
  session.cut();
  assert.equal(await reply, 'x');
});

test('a join that the gateway could not decide is asked for again', async (t) => {
  const { gateway, session } = await open(t);
  gateway.away = 1;
  await session.join('room');
  gateway.away = 1;
  session.cut();
  const joins = () => gateway.frames.filter((frame) => frame.t === 'join').length;
  await until(() => joins() === 4, 'the join after the welcome, and the one after its answer');
  await session.request('echo');
  assert.equal(gateway.away, 0);
});

test('a session that has handled nothing yet can be exported and resumed', async (t) => {
  const { gateway, session } = await open(t);
  const saved = JSON.parse(JSON.stringify(session.export()));
  assert.deepEqual(saved.cursor, { epoch: gateway.session.epoch, seq: 0, ts: 0 });
  session.detach();
  gateway.push({ body: 'queued' });
  const again = await connect(gateway.url, { token: 'ada', ...QUICK, resume: saved });
  t.after(() => again.detach());
  assert.equal(again.id, saved.sid);
  assert.equal((await take(again, 1))[0].body, 'queued');
});
