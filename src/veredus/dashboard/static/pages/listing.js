// What a list of tasks or groups shows, and what it says where there are none.

import { h } from '../dom.js';
import { line, number } from '../format.js';
import { card, empty, table, when } from '../parts.js';

/** `open(row)` is the address of a task's own page. */
export function columns(state, open) {
  const failed = state === 'retry' || state === 'archived';
  return [
    { title: 'Task', cell: (row) => h('a', { class: 'mono id', href: open(row), title: row.id }, row.id) },
    { title: 'Type', cell: (row) => h('span', { class: 'strong' }, row.type) },
    { title: 'Payload', wide: true, cell: (row) => h('span', { class: 'mono clip' }, line(row.payload) || '–') },
    {
      title: 'Last error',
      wide: true,
      hidden: !failed,
      cell: (row) => h('span', { class: 'clip text-archived' }, row.last_err || '–'),
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
      // Parked: it waits for others with its order key, or for a limit, not for a time.
      cell: (row) => (row.next_process_at?.startsWith('2286-11-20T17:46:39') ? 'its turn' : when(row.next_process_at)),
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

/** Why there is nothing, and what a newcomer can do about it. */
export function nothing(state, queue) {
  const texts = {
    active: [
      'Nothing runs at the moment',
      'Tasks appear here while a worker has them. To run what waits, start a worker:',
      'veredus worker module:app',
    ],
    pending: [
      'Nothing waits',
      'Tasks that are due stand here in the order in which they will run. Send one:',
      `veredus task enqueue -q ${queue} -t hello -l '{}'`,
    ],
    aggregating: [
      'No group is collecting',
      'Tasks that are enqueued with group= wait here until they become one.',
      null,
    ],
    scheduled: [
      'Nothing is planned',
      'Tasks with a delay or a time wait here. Send one that is due in ten minutes:',
      `veredus task enqueue -q ${queue} -t hello -l '{}' --in 10m`,
    ],
    retry: ['Nothing has to be retried', 'Tasks whose last attempt failed wait here for the next one.', null],
    archived: [
      'The archive is empty',
      'Tasks that failed for good, or that were set aside, are kept here until somebody requeues or deletes them.',
      null,
    ],
    completed: [
      'Nothing is kept',
      'Done tasks are kept here if they were enqueued with a retention:',
      `veredus task enqueue -q ${queue} -t hello -l '{}' --retention 1h`,
    ],
  };
  const [title, text, example] = texts[state];
  return empty(title, text, ...(example ? [example] : []));
}

/** The groups of a queue; `address(group)` is where its tasks are. */
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
