// Worker processes and their running tasks.

import { me, post } from '../api.js';
import { meter } from '../charts.js';
import { ask } from '../dialogs.js';
import { h } from '../dom.js';
import { clock, duration, enc, line, number, plural } from '../format.js';
import { button, empty, failure, head, loading, report, table, when } from '../parts.js';

/** Whether a name means this worker: `host:pid:id`, or the beginning of its id. */
const is = (server, name) =>
  server.id.startsWith(name) || name.startsWith(`${server.host}:${server.pid}:`) || name === `${server.host}:${server.pid}`;

/** Only workers of Veredus say what they are. */
const about = (server) =>
  server.version ? `Veredus ${server.version}, ${server.memory_mb ? `${number(server.memory_mb)} MB, ` : ''}` : '';

export class Workers {
  title = 'Workers';

  constructor(route) {
    this.only = route.query.worker ?? '';
  }

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
    const note = `${plural(all.length, 'process', 'processes')}, ${plural(busy, 'task')} running`;
    if (!this.only) return [head('Workers', { note }), all.map((server) => this.#one(server))];
    const above = h('a', { href: '#/workers' }, 'Workers');
    const found = all.filter((server) => is(server, this.only));
    return [
      head(this.only, { above }),
      found.length
        ? found.map((server) => this.#one(server))
        : h('div', { class: 'card' }, empty('This worker is gone', 'It has stopped, or its heartbeat is missing.')),
    ];
  }

  #actions(server) {
    if (me.read_only || !server.version) return null;
    const name = `${server.host}:${server.pid}`;
    return [
      server.status === 'active' &&
        server.asked === '' &&
        button('Quiet', {
          icon: 'pause',
          kind: 'small',
          label: `Quiet ${name}`,
          title: 'Take no more tasks',
          onclick: () => this.#ask('quiet', server, 'It takes no more tasks. Running tasks go on.'),
        }),
      server.asked !== 'stop' &&
        button('Stop', {
          icon: 'close',
          kind: 'small danger-quiet',
          label: `Stop ${name}`,
          onclick: () =>
            this.#ask(
              'stop',
              server,
              'It finishes its running tasks and ends, as after SIGTERM. A process manager may start it again.',
            ),
        }),
    ];
  }

  async #ask(verb, server, text) {
    const name = `${server.host}:${server.pid}`;
    const word = verb === 'quiet' ? 'Quiet' : 'Stop';
    if (!(await ask({ title: `${word} ${name}?`, text, confirm: word, danger: true }))) return;
    await report(post(`worker/${verb}`, { worker: server.id }), `${name} reacts with its next heartbeat`);
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
            server.asked && h('span', { class: 'badge is-retry' }, `asked to ${server.asked === 'quiet' ? 'take no more tasks' : 'stop'}`),
          ),
          h('div', { class: 'actions' }, h('span', { class: 'dim' }, about(server), 'started ', when(server.started)), this.#actions(server)),
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
