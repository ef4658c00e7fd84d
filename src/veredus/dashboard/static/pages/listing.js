// Columns of task and group lists, and the texts of empty lists.

import { h } from '../dom.js';
import { line, localTimes, number } from '../format.js';
import { card, empty, name, table, when } from '../parts.js';

/** `open(row)` is the address of a task's own page. */
export function columns(state, open) {
  const failed = state === 'retry' || state === 'archived';
  return [
    { title: 'Task', cell: (row) => h('a', { class: 'mono id', href: open(row), title: row.id }, row.id) },
    { title: 'Type', cell: (row) => h('span', { class: 'strong' }, name(row.type)) },
    { title: 'Payload', wide: true, cell: (row) => h('span', { class: 'mono clip' }, line(row.payload) || '–') },
    {
      title: 'Last error',
      wide: true,
      hidden: !failed,
      cell: (row) => h('span', { class: 'lines text-archived', title: row.last_err }, row.last_err || '–'),
    },
    {
      title: 'Attempts',
      number: true,
      hidden: state === 'completed',
      cell: (row) => `${row.retried}/${row.max_retry}`,
    },
    {
      title: 'Due',
      number: true,
      hidden: state !== 'scheduled' && state !== 'retry',
      cell: (row) => (row.waiting_for ? `waiting for ${localTimes(row.waiting_for)}` : when(row.next_process_at)),
    },
    { title: 'Failed', number: true, hidden: !failed, cell: (row) => when(row.last_failed_at) },
    {
      title: 'Lease',
      hidden: state !== 'active',
      cell: (row) => (row.is_orphaned ? h('span', { class: 'text-archived' }, 'lost') : 'held'),
    },
    { title: 'Done', number: true, hidden: state !== 'completed', cell: (row) => when(row.completed_at) },
    {
      title: 'Result',
      wide: true,
      hidden: state !== 'completed',
      cell: (row) => h('span', { class: 'mono clip' }, line(row.result) || '–'),
    },
  ];
}

/** Why a list is empty, and what to do next. */
export function nothing(state, queue) {
  const texts = {
    active: [
      'No task is running',
      'Tasks appear here while a worker runs them. Start a worker:',
      'veredus worker module:app',
    ],
    pending: [
      'No task is pending',
      'Tasks that are due are listed here in the order in which they will run. Send one:',
      `veredus task enqueue -q ${queue} -t hello -l '{}'`,
    ],
    aggregating: [
      'No group has tasks',
      'Tasks that are enqueued with group= wait here until they are aggregated into one.',
      null,
    ],
    scheduled: [
      'No task is scheduled',
      'Tasks with a delay or a due time wait here. Send one that is due in ten minutes:',
      `veredus task enqueue -q ${queue} -t hello -l '{}' --in 10m`,
    ],
    retry: ['No task waits for a retry', 'Tasks whose last attempt failed wait here for the next one.', null],
    archived: [
      'The archive is empty',
      'Tasks that failed for good or were archived by hand stay here until you requeue or delete them.',
      null,
    ],
    completed: [
      'No completed tasks',
      'Completed tasks are kept here if they were enqueued with a retention:',
      `veredus task enqueue -q ${queue} -t hello -l '{}' --retention 1h`,
    ],
  };
  const [title, text, example] = texts[state];
  return empty(title, text, ...(example ? [example] : []));
}

/** The groups of a queue; `address(group)` is the page with its tasks. */
export function groupsCard(groups, address) {
  return card(
    `Groups (${number(groups.total)})`,
    table({
      label: 'Groups',
      rows: groups.groups,
      key: (row) => row.group,
      open: (row) => address(row.group),
      columns: [
        { title: 'Group', cell: (row) => h('a', { class: 'strong', href: address(row.group) }, row.group) },
        { title: 'Tasks', number: true, cell: (row) => number(row.size) },
      ],
    }),
  );
}
