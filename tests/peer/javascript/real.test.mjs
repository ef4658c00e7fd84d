// One job: the JavaScript client against a real gateway, a worker and a server; its address comes from the environment.

import assert from 'node:assert/strict';
import { test } from 'node:test';

const { connect, RequestLost, RequestRejected } = await import(process.env.VEREDUS_CLIENT);
const QUICK = { token: 'ada', backoffBase: 0.01, backoffMax: 0.05, ackDelay: 0.01 };

/** What sessionStorage is to a page: it outlives a reload. */
function page() {
  const kept = new Map();
  return {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
}

async function open(t, options = {}) {
  const session = await connect(process.env.VEREDUS_URL, { ...QUICK, ...options });
  t.after(() => session.close());
  return session;
}

async function take(session, count) {
  const items = [];
  for await (const item of session) {
    items.push(item);
    if (items.length === count) break;
  }
  return items;
}

test('a reload before the first handled message keeps the session, a queued push and a running request', { timeout: 15_000 }, async (t) => {
  const storage = page();
  const first = await open(t, { storage });
  const { id } = first;
  first.request('wait', { seconds: 0.3 }).catch(() => {}); // answered after the reload
  first.request('push', { count: 1 }).catch(() => {});
  await first.request('push', { count: 0 });
  first.detach(); // as a page that is unloaded
  const again = await open(t, { storage });
  assert.equal(again.id, id);
  const seen = await take(again, 4 - again.cursor.seq);
  assert.ok(seen.some((item) => item.kind === 'notify' && item.body === 0), 'the push');
  assert.ok(seen.some((item) => item.kind === 'response' && item.body === 'waited'), 'the response');
  assert.deepEqual(await again.request('echo', { text: 'x' }), 'x');
});

test('reloaded again and again, nothing is lost and nothing comes twice', { timeout: 15_000 }, async (t) => {
  const storage = page();
  const seen = [];
  let session = await open(t, { storage });
  session.request('push', { count: 30 }).catch(() => {});
  while (seen.length < 31) {
    const [item] = await take(session, 1);
    seen.push(item.kind === 'notify' ? item.body : item.kind);
    session.handled();
    if (seen.length % 3 === 0) session.cut();
    if (seen.length % 4 === 0) {
      session.detach();
      session = await open(t, { storage });
    }
  }
  assert.deepEqual(seen, [...Array(30).keys(), 'response']);
});

test('a request that a closed queue rejects is sent again and runs once', { timeout: 15_000 }, async (t) => {
  const session = await open(t, { retries: 50 });
  await session.request('close', { seconds: 0.3 });
  assert.equal(await session.request('count'), 1);
  await session.request('close', { seconds: 0 });
  const hasty = await open(t, { retries: 0 });
  await assert.rejects(hasty.request('count'), (e) => e instanceof RequestRejected && e.code === 503 && e.retryable);
});

test('groups are joined if the gateway says so', { timeout: 15_000 }, async (t) => {
  const session = await open(t);
  await session.join('room');
  await assert.rejects(session.join('secret'), (e) => e instanceof RequestRejected && e.code === 403);
  session.request('tell', { group: 'room' }).catch(() => {});
  const [item] = await take(session, 1);
  assert.deepEqual([item.group, item.body], ['room', 'hello']);
});

test('a server that was emptied: a new session, a discontinuity, open requests end with an error', { timeout: 15_000 }, async (t) => {
  const session = await open(t);
  const before = session.id;
  const reply = session.request('wait', { seconds: 60 });
  reply.catch(() => {});
  session.request('empty').catch(() => {});
  const [item] = await take(session, 1);
  assert.deepEqual([item.kind, item.reason], ['discontinuity', 'unknown']);
  await assert.rejects(reply, RequestLost);
  assert.notEqual(session.id, before);
  assert.equal(await session.request('echo', { text: 'again' }), 'again');
});
