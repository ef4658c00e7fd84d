// Running jobs at the edge of every page: their progress, and a button to stop them.

import { me, post } from './api.js';
import { start, started } from './actions.js';
import { meter } from './charts.js';
import { ask } from './dialogs.js';
import { h } from './dom.js';
import { number, plural } from './format.js';
import { button, toast } from './parts.js';

const RUNNING = ['running', 'stopping'];
const dismissed = new Set();
const seen = new Map();
let received = false;

/** `jobs` is null until the first list has arrived. */
export function jobsDock(jobs, update) {
  for (const job of jobs ?? []) {
    const ended = !RUNNING.includes(job.status);
    // Jobs that ended before this page was opened stay hidden; later ones disappear after a while.
    if (ended && !received) dismissed.add(job.id);
    if (job.status === 'done' && received && seen.get(job.id) !== 'done')
      setTimeout(() => {
        dismissed.add(job.id);
        update();
      }, 6000);
    seen.set(job.id, job.status);
  }
  received ||= jobs !== null;
  const shown = (jobs ?? []).filter((job) => !dismissed.has(job.id) && job.verb !== 'count').slice(0, 4);
  return h(
    'aside',
    { class: 'dock', 'aria-label': 'Jobs', hidden: !shown.length },
    shown.map((job) => one(job, update)),
  );
}

function one(job, update) {
  const running = RUNNING.includes(job.status);
  const share = job.total ? job.done / job.total : running ? 0 : 1;
  const hide = () => {
    dismissed.add(job.id);
    update();
  };
  return h(
    'section',
    { class: `job is-${job.status}`, key: job.id },
    h(
      'div',
      { class: 'job-head' },
      h('strong', {}, job.title),
      !running && button('', { icon: 'close', kind: 'quiet-button', onclick: hide, label: 'Hide this job' }),
    ),
    meter(share, `${job.title}: ${Math.round(share * 100)} percent`, job.status === 'failed' ? 'bad' : ''),
    h(
      'div',
      { class: 'job-foot' },
      h('span', {}, text(job)),
      running &&
        job.stoppable &&
        button(job.status === 'stopping' ? 'Stopping…' : 'Stop', {
          kind: 'small',
          disabled: job.status === 'stopping',
          onclick: () => post('jobs/stop', { id: job.id }).catch((error) => toast(error.message, 'bad')),
        }),
      job.error?.error === 'archive_full' &&
        started.has(job.id) &&
        !me.read_only &&
        button('Delete old tasks…', { kind: 'small', onclick: () => dropExcess(job, hide) }),
    ),
  );
}

function text(job) {
  if (job.status === 'failed') return job.error.message;
  if (RUNNING.includes(job.status)) return job.total ? `${number(job.done)} of ${number(job.total)}` : 'running…';
  const result = job.result ?? {};
  if (result.done !== undefined)
    return `${job.status === 'stopped' ? 'stopped after ' : ''}${plural(result.done, 'task')} of ${number(result.total)}`;
  if (result.repaired !== undefined) return `${number(result.repaired)} repaired`;
  if (result.findings) return result.total ? plural(result.total, 'finding') : 'every task is where it should be';
  return job.status;
}

async function dropExcess(job, hide) {
  const { excess, limit } = job.error;
  const given = await ask({
    title: `Delete ${plural(excess, 'old archived task')}?`,
    danger: true,
    text: `The archive holds ${number(limit)} tasks. To archive these, the ${plural(excess, 'oldest task')} in it must be deleted.`,
    confirm: `Archive and delete ${number(excess)}`,
  });
  if (!given) return;
  hide();
  await start('jobs/start', { ...started.get(job.id), drop_excess: true }).catch((error) => toast(error.message, 'bad'));
}
