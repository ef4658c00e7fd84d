// Actions on tasks: ask first where tasks are lost or many are changed, then call the API.

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
        text: `${those} ${from} will be deleted with payload and result. This cannot be undone.`,
        confirm: `Delete ${plural(ids.length, 'task')}`,
        danger: true,
      });
    case 'cancel':
      return ask({
        title: `Cancel ${plural(ids.length, 'task')}?`,
        text: `${those} ${from} ${state === 'active' ? 'will be stopped' : 'will not run'}.`,
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
        dismiss: 'Go back',
      });
    case 'archive':
      return ask({
        title: `Archive ${plural(ids.length, 'task')}?`,
        text: `${those} ${from} will not run until you requeue it from the archive.`,
        confirm: `Archive ${plural(ids.length, 'task')}`,
        danger: true,
      });
    case 'requeue':
      if (state !== 'active') return {};
      return ask({
        title: `Stop and requeue ${plural(ids.length, 'running task')}?`,
        text: `${those} ${from} will be stopped and run again. Work that it has already done may be repeated.`,
        confirm: 'Stop and requeue',
        danger: true,
      });
    case 'reschedule': {
      const given = await ask({
        title: `Reschedule ${plural(ids.length, 'task')}`,
        text: `When should ${those} ${from} be due?`,
        confirm: 'Reschedule',
        fields: [
          {
            name: 'delay',
            label: 'In seconds',
            type: 'number',
            value: '',
            step: 'any',
            hint: 'Leave empty to choose a time.',
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
        text: `${those} ${from} keeps its id, state and due time.`,
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
        toast('This payload is not text or is too long to edit here: use veredus task edit', 'bad');
        return null;
      }
      const given = await ask({
        title: 'Edit the payload',
        text: `For ${those} ${from}. The text is stored exactly as entered. A unique lock moves with it.`,
        confirm: 'Save',
        fields: [{ name: 'payload', label: 'Payload', type: 'area', value: found.payload?.utf8 ?? '' }],
      });
      return given && { payload: given.payload };
    }
    default:
      return {};
  }
}

/** Resolves to true if the API was called. */
export async function perform(verb, queue, ids, state, task) {
  if (me.read_only) return false;
  const given = await question(verb, queue, ids, state, task);
  if (!given) return false;
  try {
    if (verb === 'edit') await post('task/edit', { queue, id: ids[0], ...given });
    else {
      const front = verb === 'run' && state === 'pending' ? { front: true } : {};
      const answer = await post(`tasks/${verb}`, { queue, ids, ...front, ...given });
      if (answer.failed.length) toast(`${number(answer.failed.length)} refused: ${answer.failed[0].message}`, 'bad');
      if (!answer.done.length) return true;
      ids = answer.done;
    }
    toast(`${plural(ids.length, 'task')} ${ACTIONS[verb].past}`);
  } catch (error) {
    toast(error.message, 'bad');
  }
  return true;
}

/** Asks for a new task and sends it. Resolves to its queue and id. */
export async function enqueue(queue = '') {
  const [{ queues }, { types }] = await Promise.all([get('overview'), get('types?minutes=43200')]);
  const given = await ask({
    title: 'Enqueue a task',
    text: 'The payload is stored exactly as entered; most handlers expect JSON. Empty fields take their defaults.',
    confirm: 'Enqueue',
    fields: [
      { name: 'type', label: 'Type', required: true, options: types.map((one) => one.type) },
      { name: 'queue', label: 'Queue', value: queue, options: queues.map((one) => one.queue) },
      { name: 'payload', label: 'Payload', type: 'area', value: '{}', rows: 6 },
      { name: 'delay', label: 'Due in seconds', type: 'number', step: 'any' },
      { name: 'max_retry', label: 'Retries', type: 'number' },
      { name: 'task_id', label: 'Task id' },
    ],
  });
  if (!given) return null;
  const { delay, max_retry, ...texts } = given;
  const body = Object.fromEntries(Object.entries(texts).filter(([, value]) => value !== ''));
  if (delay !== '') body.delay = Number(delay);
  if (max_retry !== '') body.max_retry = Number(max_retry);
  try {
    const sent = await post('enqueue', body);
    toast(sent.created ? `Enqueued ${sent.id}` : 'Not enqueued: an equal task exists');
    return sent;
  } catch (error) {
    toast(error.message, 'bad');
    return null;
  }
}

const CONSEQUENCE = {
  delete: 'They will be deleted. This cannot be undone.',
  archive: 'They will not run until you requeue them.',
  run: 'They become pending in their current order.',
  cancel: 'They will be stopped and archived.',
};

/** Applies a verb to all tasks of a state, or to all that match: shows how many, then starts a job. */
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
  const what = (count) => `${plural(count, `${state} task`)} of queue “${queue}”`;
  const given = await confirmed(verb, {
    title: `${name} ${filtered ? 'all matching tasks' : `all ${state} tasks`}?`,
    name,
    total,
    what: (count) => `${what(count)}${filtered ? ' match' : ''}. `,
    counting: filtered && ['jobs/count', of],
  });
  if (given) await start('jobs/start', { verb, ...of }).catch((error) => toast(error.message, 'bad'));
}

/** Runs or deletes the tasks that wait for a retry or are archived because of an error of this group. */
export async function performErrors(verb, group) {
  const name = verb === 'run' ? 'Run' : 'Delete';
  const given = await confirmed(verb, {
    title: `${name} the tasks with this error?`,
    name,
    what: (count) => `${plural(count, 'task')} failed last with ${group.error_class} in ${group.type}. `,
    counting: ['errors/count', { group: group.id }],
  });
  if (given) await start(`errors/${verb}`, { group: group.id }).catch((error) => toast(error.message, 'bad'));
}

/** Asks before many tasks are changed; counts them first where their number is not known. */
async function confirmed(verb, { title, name, total, what, counting }) {
  const counted = counting ? await countFirst(...counting).catch((error) => toast(error.message, 'bad')) : undefined;
  if (counting && !counted) return null;
  return ask({
    title,
    text: counting ? 'Counting…' : `${what(total)}${CONSEQUENCE[verb]}`,
    confirm: counting ? `${name} them` : `${name} ${plural(total, 'task')}`,
    danger: verb !== 'run',
    ...(verb === 'cancel' ? { dismiss: 'Go back' } : {}),
    watch:
      counted &&
      (({ detail, go }) =>
        counted((count, done, all, ended) => {
          go.disabled = !ended || !count;
          detail.textContent = ended
            ? `${what(count)}${CONSEQUENCE[verb]}`
            : `Counting… ${number(done)} of ${number(all)} checked so far.`;
          if (ended) go.textContent = `${name} ${plural(count, 'task')}`;
        })),
  });
}

/** The requests of the jobs that this page started, so that one can be repeated with drop_excess. */
export const started = new Map();

export async function start(address, job) {
  const { id } = await post(address, job);
  started.set(id, job);
}

/** Starts a count. Returns a function for the dialog: it takes a listener and returns a function that stops. */
async function countFirst(address, of) {
  const job = await post(address, of);
  return (report) => {
    let left = false;
    const poll = async () => {
      if (left) return;
      const now = await get(`job?id=${job.id}`).catch(() => null);
      if (left || !now) return;
      const ended = now.status === 'done';
      report(ended ? now.result.count : 0, now.done, now.total, ended);
      if (!ended) setTimeout(poll, 200);
    };
    report(0, 0, job.total, false);
    poll();
    return () => {
      left = true;
      post('jobs/stop', { id: job.id }).catch(() => {});
    };
  };
}
