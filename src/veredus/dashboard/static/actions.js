// What can be done with tasks: the question first where something is destroyed or many are hit, then the call.

import { get, me, post } from './api.js';
import { ask } from './dialogs.js';
import { number, plural, query } from './format.js';
import { toast } from './parts.js';

export const ACTIONS = {
  run: { name: 'Run now', icon: 'play', past: 'now pending' },
  requeue: { name: 'Requeue', icon: 'requeue', past: 'requeued' },
  cancel: { name: 'Cancel', icon: 'cancel', past: 'cancelled', danger: true },
  reschedule: { name: 'Reschedule', icon: 'clock', past: 'rescheduled' },
  edit: { name: 'Edit', icon: 'edit', past: 'edited', single: true },
  move: { name: 'Move', icon: 'move', past: 'moved' },
  archive: { name: 'Archive', icon: 'archive', past: 'archived' },
  delete: { name: 'Delete', icon: 'trash', past: 'deleted', danger: true },
};

/** By state, in the order of the buttons; the server says the same for a single task. */
export const ALLOWED = {
  active: ['cancel', 'requeue'],
  pending: ['run', 'reschedule', 'edit', 'move', 'archive', 'cancel', 'delete'],
  scheduled: ['run', 'reschedule', 'edit', 'move', 'archive', 'cancel', 'delete'],
  retry: ['run', 'reschedule', 'edit', 'move', 'archive', 'cancel', 'delete'],
  archived: ['requeue', 'reschedule', 'edit', 'move', 'delete'],
  completed: ['requeue', 'move', 'archive', 'delete'],
  aggregating: ['run', 'move', 'archive', 'cancel', 'delete'],
};
export const ALL = { active: ['cancel'], pending: ['archive', 'delete'], archived: ['run', 'delete'] };
export const forAll = (state) => ALL[state] ?? ['run', 'archive', 'delete'];

const THEN = [
  ['archive', 'archive it'],
  ['delete', 'delete it'],
  ['retry', 'retry it later'],
];
const local = (seconds) => {
  const at = new Date(Date.now() + seconds * 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
};

async function question(verb, queue, ids, state, task) {
  const those = ids.length === 1 ? `the task ${ids[0]}` : plural(ids.length, 'task');
  const from = `of queue “${queue}”`;
  switch (verb) {
    case 'delete':
      return ask({
        title: `Delete ${plural(ids.length, 'task')}?`,
        text: `${those} ${from} will be gone for good, with payload and result. This cannot be undone.`,
        confirm: `Delete ${plural(ids.length, 'task')}`,
        danger: true,
        keep: 'Keep',
      });
    case 'cancel':
      return ask({
        title: `Cancel ${plural(ids.length, 'task')}?`,
        text: `${those} ${from} ${state === 'active' ? 'will be stopped while running' : 'will not run'}.`,
        fields: [
          {
            name: 'then',
            label: 'Then',
            type: 'select',
            options: state === 'active' ? THEN : THEN.slice(0, 2),
            value: 'archive',
          },
        ],
        confirm: `Cancel ${plural(ids.length, 'task')}`,
        danger: true,
        keep: 'Keep',
      });
    case 'archive':
      return ask({
        title: `Archive ${plural(ids.length, 'task')}?`,
        text: `${those} ${from} will not run until somebody requeues it from the archive.`,
        confirm: `Archive ${plural(ids.length, 'task')}`,
        danger: true,
        keep: 'Keep',
      });
    case 'requeue':
      if (state !== 'active') return {};
      return ask({
        title: `Stop and requeue ${plural(ids.length, 'running task')}?`,
        text: `${those} ${from} will be stopped where it runs and tried again. What it has done so far may be done twice.`,
        confirm: 'Stop and requeue',
        danger: true,
        keep: 'Keep',
      });
    case 'reschedule': {
      const given = await ask({
        title: `Reschedule ${plural(ids.length, 'task')}`,
        text: `When shall ${those} ${from} be due?`,
        confirm: 'Reschedule',
        fields: [
          {
            name: 'delay',
            label: 'In seconds',
            type: 'number',
            value: '',
            step: 'any',
            hint: 'Leave it empty to give an instant.',
          },
          { name: 'at', label: 'Or at', type: 'datetime-local', value: local(3600) },
        ],
      });
      if (!given) return null;
      return given.delay !== '' ? { delay: Number(given.delay) } : { at: new Date(given.at).toISOString() };
    }
    case 'move': {
      const { queues } = await get('overview');
      return ask({
        title: `Move ${plural(ids.length, 'task')}`,
        text: `${those} ${from} keeps its id, its state and its due time.`,
        confirm: 'Move',
        fields: [
          {
            name: 'target',
            label: 'To the queue',
            required: true,
            options: queues.map((one) => one.queue).filter((one) => one !== queue),
          },
        ],
      });
    }
    case 'edit': {
      const found = task ?? (await get(`task${query({ queue, id: ids[0] })}`));
      if (found.payload && (found.payload.utf8 === undefined || found.payload.truncated)) {
        toast('This payload is not text, or too long to be edited here: use veredus task edit', 'bad');
        return null;
      }
      const given = await ask({
        title: 'Edit the payload',
        text: `Of ${those} ${from}. It is stored exactly as it stands here; a unique lock moves with it.`,
        confirm: 'Save',
        fields: [{ name: 'payload', label: 'Payload', type: 'area', value: found.payload?.utf8 ?? '' }],
      });
      return given && { payload: given.payload };
    }
    default:
      return {};
  }
}

/** True if something was done. */
export async function perform(verb, queue, ids, state, task) {
  if (me.read_only) return false;
  const given = await question(verb, queue, ids, state, task);
  if (!given) return false;
  try {
    if (verb === 'edit') await post('task/edit', { queue, id: ids[0], ...given });
    else {
      const front = verb === 'run' && state === 'pending' ? { front: true } : {};
      const told = await post(`tasks/${verb}`, { queue, ids, ...front, ...given });
      if (told.failed.length) toast(`${number(told.failed.length)} refused: ${told.failed[0].message}`, 'bad');
      if (!told.done.length) return true;
      ids = told.done;
    }
    toast(`${plural(ids.length, 'task')} ${ACTIONS[verb].past}`);
  } catch (error) {
    toast(error.message, 'bad');
  }
  return true;
}

/** A verb for all tasks of a state, or all that fit: says how many are hit, then a job does it. */
export async function performAll(verb, queue, state, { group, filters = {}, total }) {
  const name =
    verb === 'run' ? (state === 'archived' || state === 'completed' ? 'Requeue' : 'Run') : ACTIONS[verb].name;
  const filtered = Object.values(filters).some(Boolean);
  const of = {
    queue,
    state,
    ...(group ? { group } : {}),
    ...Object.fromEntries(Object.entries(filters).filter(([, value]) => value)),
  };
  const counted = filtered ? await countFirst(of) : undefined;
  const consequence = {
    delete: 'They will be gone for good. This cannot be undone.',
    archive: 'They will not run until somebody requeues them.',
    run: 'They become pending now, in their order.',
    cancel: 'They will be stopped while running and archived.',
  }[verb];
  const given = await ask({
    title: `${name} ${filtered ? 'all that fit' : `all ${state} tasks`}?`,
    text: filtered ? 'Counting…' : `${plural(total, `${state} task`)} of queue “${queue}” will be hit. ${consequence}`,
    confirm: filtered ? `${name} them` : `${name} ${plural(total, 'task')}`,
    danger: verb !== 'run',
    keep: 'Keep',
    watch:
      counted &&
      (({ detail, go }) =>
        counted((count, done, all, ended) => {
          go.disabled = !ended || !count;
          detail.textContent = ended
            ? `${plural(count, `${state} task`)} of queue “${queue}” fit and will be hit. ${consequence}`
            : `Counting… looked at ${number(done)} of ${number(all)} so far.`;
          if (ended) go.textContent = `${name} ${plural(count, 'task')}`;
        })),
  });
  if (!given) return;
  try {
    await start({ verb, ...of });
  } catch (error) {
    toast(error.message, 'bad');
  }
}

/** What the jobs of this page were asked to do, to ask again with more leave. */
export const started = new Map();

export async function start(job) {
  const told = await post('jobs/start', job);
  started.set(told.id, job);
}

/** Starts counting; gives what the dialog calls with a listener, and which returns how to stop. */
async function countFirst(of) {
  const job = await post('jobs/count', of);
  return (tell) => {
    let left = false;
    const look = async () => {
      if (left) return;
      const now = await get(`job?id=${job.id}`).catch(() => null);
      if (left || !now) return;
      const ended = now.status === 'done';
      tell(ended ? now.result.count : 0, now.done, now.total, ended);
      if (!ended) setTimeout(look, 200);
    };
    tell(0, 0, job.total, false);
    look();
    return () => {
      left = true;
      post('jobs/stop', { id: job.id }).catch(() => {});
    };
  };
}
