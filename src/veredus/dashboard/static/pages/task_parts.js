// Parts of a task's page: its attempts, why it waits, and the run of a durable task.

import { timeline } from '../charts.js';
import { h } from '../dom.js';
import { ago, clock, duration, lengthSince, localTimes, number, plural, query } from '../format.js';
import { block, card, facts, taskLink, when, workerLink } from '../parts.js';

const GOOD = ['succeeded', 'done'];
const kind = (outcome) =>
  GOOD.includes(outcome) ? 'completed' : ['waiting', 'given back', 'not recorded'].includes(outcome) ? 'pending' : 'archived';
const outcomeBadge = (outcome) => h('span', { class: `badge is-${kind(outcome)}` }, outcome);

/** Why a task does not run now, as sentences. */
export function waitsCard(task) {
  if (!task.waits?.length) return null;
  const orderPage = h('a', { href: `#/order${query({ queue: task.queue })}` }, 'Order & limits');
  const sentences = {
    'order key': (one) => [
      `Order key “${one.name}”`,
      one.held_by && [' is held by ', taskLink(task.queue, one.held_by)],
      one.holder_state && ` (${one.holder_state})`,
      one.holder_state === 'archived' && [': release it under ', orderPage, '. It has waited'],
    ],
    limit: (one) => [`The limit “${one.name}” is used up (`, orderPage, ')'],
    due: () => ['It is not due yet'],
    paused: () => ['The queue is paused'],
    'no worker': () => ['No worker serves this queue'],
    'unknown type': (one) => [`No worker of this queue has a handler for ${one.name}`],
    event: (one) => [`It waits for the event “${one.name}”`],
    sleep: (one) => [`It sleeps: “${one.name}”`],
    children: (one) => [`It waits for its children: ${one.name}`],
  };
  // How long, and until when: a limit is looked at again, all else ends.
  const lengths = (one) => {
    const since = one.since && [' for ', h('time', { datetime: one.since, title: clock(one.since) }, lengthSince(one.since))];
    const at = one.until && [h('time', { datetime: one.until, title: clock(one.until) }, ago(one.until)), ` (${clock(one.until)})`];
    if (one.reason === 'due') return at ? ['. It is due ', at] : [];
    if (one.reason === 'limit') return [since && [', and it has waited', since], at && ['. It is looked at again ', at, ' at the latest']];
    return [since, one.until && [`, until ${clock(one.until)} at the latest`]];
  };
  return card(
    'Why it waits',
    h(
      'ul',
      { class: 'reasons' },
      task.waits.map((one) =>
        h(
          'li',
          {},
          (sentences[one.reason] ?? (() => [`${one.reason} ${one.name}`]))(one),
          lengths(one),
        ),
      ),
    ),
  );
}

/** The attempts of a task, the last one first. */
export function attemptsCard(task) {
  const all = task.attempts ?? [];
  if (!all.length) return null;
  const rows = all
    .filter((one) => one.started && one.ended)
    .map((one) => ({
      name: `Attempt ${one.attempt}`,
      from: Date.parse(one.started),
      to: Date.parse(one.ended),
      kind: kind(one.outcome),
      text: `${one.outcome}, ${duration(one.seconds)}`,
    }));
  return card(
    h(
      'div',
      { class: 'split' },
      h('h2', {}, 'Attempts'),
      h('span', { class: 'dim' }, all.length === 10 ? 'the last 10' : plural(all.length, 'attempt')),
    ),
    rows.length > 1 && timeline(rows, 'Attempts over time'),
    all.toReversed().map((one, at) => attempt(one, at === 0)),
  );
}

function attempt(one, last) {
  const parts = one.traceback ? (one.log.length ? 'Traceback and log' : 'Traceback') : one.log.length ? 'Log' : '';
  return h(
    'section',
    { class: 'attempt', key: `attempt ${one.attempt} ${one.started}` },
    h(
      'div',
      { class: 'split' },
      h('h3', {}, `Attempt ${one.attempt}`, outcomeBadge(one.outcome)),
      h(
        'span',
        { class: 'dim' },
        one.seconds !== null && `${duration(one.seconds)}, `,
        one.ended ? ['ended ', when(one.ended)] : 'no record of it',
      ),
    ),
    one.error_class &&
      h(
        'p',
        { class: 'text-archived' },
        h('strong', { class: 'mono' }, one.error_class),
        one.error ? `: ${one.error}` : '',
      ),
    !one.error_class && one.error && h('p', {}, one.error),
    facts([
      one.place && ['Place', h('span', { class: 'mono' }, one.place)],
      one.worker && ['Worker', workerLink(one.worker)],
      one.started && ['Started', clock(one.started)],
    ]),
    parts &&
      h(
        'details',
        { open: last },
        h('summary', {}, parts),
        one.log.length > 0 && logLines(one),
        one.traceback && block(one.traceback, `Traceback of attempt ${one.attempt}`),
      ),
  );
}

const logLines = (one) =>
  block(
    one.log.map(({ at, text }) => `${clock(at).slice(11)}  ${text}`).join('\n'),
    `Log of attempt ${one.attempt}`,
  );

/** What a durable task has done so far. */
export function runCard(task) {
  const { run } = task;
  if (!run) return null;
  const now = Date.now();
  const rows = run.steps
    .filter((one) => one.began)
    .map((one) => {
      const from = Date.parse(one.began);
      const to = one.seconds === null ? now : from + one.seconds * 1000;
      const text = `${one.kind}, ${one.outcome}${one.seconds === null ? '' : `, ${duration(one.seconds)}`}`;
      return { name: one.name, from, to, kind: kind(one.outcome), text };
    });
  return card(
    h(
      'div',
      { class: 'split' },
      h('h2', {}, 'Run'),
      run.waiting && h('span', { class: 'badge is-pending' }, `waits for ${run.waiting.split(' until ')[0]}`),
    ),
    rows.length > 0 && timeline(rows, 'Steps over time'),
    h(
      'ol',
      { class: 'steps' },
      run.steps.map((one) =>
        h(
          'li',
          { key: `${one.kind} ${one.name}` },
          h('div', { class: 'split' }, h('span', {}, h('strong', {}, one.name), ` ${one.kind}`, outcomeBadge(one.outcome)), when(one.began)),
          one.detail && h('p', { class: 'mono dim' }, one.kind === 'step' ? one.detail : localTimes(one.detail)),
          one.children?.length > 0 && children(one),
        ),
      ),
    ),
  );
}

const children = (step) =>
  h(
    'ul',
    { class: 'children' },
    step.children.map((child) => h('li', {}, taskLink(child.queue, child.id), outcomeBadge(child.outcome))),
    step.size > step.children.length &&
      h('li', { class: 'dim' }, `and ${number(step.size - step.children.length)} more`),
  );
