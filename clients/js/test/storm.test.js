// One job: pushes, copies, holes, cuts by either side, slow reading and requests at random; the journal stays whole.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { connect } from '../veredus.js';
import { ScriptedGateway } from './gateway.js';

const seed = Number(process.env.VEREDUS_TEST_SEED ?? Math.floor(Math.random() * 1e6));

/** The same numbers for the same seed. */
function generator(state) {
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

test(`a storm; replay with VEREDUS_TEST_SEED=${seed}`, async (t) => {
  const chance = generator(seed);
  const gateway = await new ScriptedGateway().start();
  const session = await connect(gateway.url, { token: 'ada', backoffBase: 0.01, backoffMax: 0.05 });
  t.after(async () => {
    session.close();
    await gateway.stop();
  });
  const journal = [];
  session.on('message', async (message) => {
    journal.push(message.seq);
    if (chance() < 0.1) await pause(3);
  });
  const log = gateway.session;
  const answers = [];
  for (let step = 0; step < 200; step += 1) {
    const what = Math.floor(chance() * 8);
    if (what < 3) for (let n = Math.floor(chance() * 5); n >= 0; n -= 1) gateway.push({ body: step });
    else if (what === 3 && log.wire.open && log.top) {
      for (let seq = Math.max(1, log.top - 10); seq <= log.top; seq += 1) log.wire.send(log.log.get(seq));
    } else if (what === 4) {
      log.mute = chance() < 0.5;
      gateway.push({ body: 'perhaps unseen' });
      log.mute = false;
    } else if (what === 5) session.cut();
    else if (what === 6) gateway.killAll();
    else answers.push(session.request('echo', step));
    await pause(chance() * 6);
  }
  const echoed = await Promise.all(answers);
  assert.deepEqual(echoed, [...echoed].sort((a, b) => a - b));
  assert.equal(new Set(gateway.ran).size, gateway.ran.length);
  assert.equal(gateway.ran.length, answers.length);
  gateway.push({ body: 'the last one' });
  for (let tries = 0; journal.at(-1) !== log.top && tries < 1000; tries += 1) await pause(5);
  assert.deepEqual(journal, Array.from({ length: log.top }, (_, n) => n + 1));
  assert.equal(session.stats.resets, 0);
  assert.ok(session.stats.resumes > 5);
});
