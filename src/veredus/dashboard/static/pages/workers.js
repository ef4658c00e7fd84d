// Worker processes and their running tasks.

import { meter } from '../charts.js';
import { h } from '../dom.js';
import { clock, duration, enc, line, number, plural } from '../format.js';
import { empty, failure, head, loading, table, when } from '../parts.js';

export class Workers {
  title = 'Workers';

  topics() {
    return { servers: 'servers' };
  }

  render({ servers }, errors) {
    if (errors.servers) return [head('Workers'), failure(errors.servers)];
    if (!servers) return [head('Workers'), loading()];
    const all = servers.servers;
    if (!all.length) {
      return [
        head('Workers'),
        h(
          'div',
          { class: 'card' },
          empty(
            'No worker is running',
            'Tasks wait until a worker runs them. Start one in the folder of your app:',
            'veredus worker module:app',
          ),
        ),
      ];
    }
    const busy = all.reduce((sum, server) => sum + server.active_workers.length, 0);
    return [
      head('Workers', { note: `${plural(all.length, 'process', 'processes')}, ${plural(busy, 'task')} running` }),
      all.map((server) => this.#one(server)),
    ];
  }

  #one(server) {
    const busy = server.active_workers.length;
    return h(
      'section',
      { class: 'card', key: server.id, 'aria-label': `${server.host}:${server.pid}` },
      h(
        'header',
        { class: 'card-head' },
        h(
          'div',
          { class: 'split' },
          h(
            'h2',
            {},
            `${server.host}:${server.pid}`,
            h('span', { class: `badge ${server.status === 'active' ? 'is-completed' : 'is-paused'}` }, server.status),
          ),
          h('span', { class: 'dim' }, 'started ', when(server.started)),
        ),
      ),
      h(
        'div',
        { class: 'worker-line' },
        meter(server.concurrency ? busy / server.concurrency : 0, `${busy} of ${server.concurrency} slots busy`),
        h('span', { class: 'tabular' }, `${number(busy)} of ${number(server.concurrency)} slots busy`),
      ),
      h(
        'p',
        { class: 'chips' },
        Object.entries(server.queues).map(([name, weight]) =>
          h('a', { class: 'chip', href: `#/queues/${enc(name)}` }, name, h('b', {}, weight)),
        ),
        server.strict_priority && h('span', { class: 'dim' }, 'strict priority'),
      ),
      busy
        ? table({
            label: `Running tasks of ${server.host}:${server.pid}`,
            rows: server.active_workers,
            key: (row) => `${row.queue}/${row.task_id}`,
            open: (row) => `#/queues/${enc(row.queue)}/tasks/${enc(row.task_id)}`,
            columns: [
              {
                title: 'Task',
                cell: (row) =>
                  h(
                    'a',
                    {
                      class: 'mono id',
                      href: `#/queues/${enc(row.queue)}/tasks/${enc(row.task_id)}`,
                      title: row.task_id,
                    },
                    row.task_id,
                  ),
              },
              { title: 'Type', cell: (row) => h('span', { class: 'strong' }, row.task_type) },
              { title: 'Queue', cell: (row) => row.queue },
              {
                title: 'Payload',
                wide: true,
                cell: (row) => h('span', { class: 'mono clip' }, line(row.task_payload) || '–'),
              },
              {
                title: 'Running for',
                number: true,
                cell: (row) =>
                  h(
                    'time',
                    { datetime: row.started, title: clock(row.started) },
                    duration(Math.max(0, (Date.now() - Date.parse(row.started)) / 1000)),
                  ),
              },
              { title: 'Deadline', number: true, cell: (row) => when(row.deadline) },
            ],
          })
        : h('p', { class: 'dim pad' }, 'Idle.'),
    );
  }
}
