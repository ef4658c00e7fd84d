// Schedules: when they fire and when they fired.

import { me, post } from '../api.js';
import { h } from '../dom.js';
import { clock, enc, line, plural, query } from '../format.js';
import { button, card, empty, facts, failure, head, loading, report, table, when } from '../parts.js';

export class Schedules {
  title = 'Schedules';
  open = '';

  constructor(route, app) {
    this.app = app;
    this.open = route.query.id ?? '';
  }

  topics() {
    return {
      schedules: 'schedules',
      ...(this.open ? { events: `schedule${query({ id: this.open, size: 20 })}` } : {}),
    };
  }

  render({ schedules, events }, errors) {
    if (errors.schedules) return [head('Schedules'), failure(errors.schedules)];
    if (!schedules) return [head('Schedules'), loading()];
    const rows = schedules.schedules;
    if (!rows.length) {
      return [
        head('Schedules'),
        h(
          'div',
          { class: 'card' },
          empty(
            'No scheduler is running',
            'Schedules declared with @app.cron(...) or app.schedule(...) are shown here while a worker or a scheduler runs:',
            'veredus worker module:app',
            'veredus scheduler module:app',
          ),
        ),
      ];
    }
    const open = (row) => `#/schedules${query({ id: row.id })}`;
    return [
      head('Schedules', { note: plural(rows.length, 'schedule') }),
      card(
        null,
        table({
          label: 'Schedules',
          rows,
          key: (row) => row.id,
          open,
          columns: [
            {
              title: 'Schedule',
              sort: (row) => row.task_type,
              cell: (row) =>
                h(
                  'a',
                  {
                    class: 'strong',
                    href: open(row),
                    title: row.id,
                    'aria-current': row.id === this.open ? 'true' : null,
                  },
                  row.task_type,
                ),
            },
            {
              title: 'When',
              cell: (row) => [
                h('span', { title: row.spec }, row.words),
                row.paused && h('span', { class: 'badge is-paused' }, 'paused'),
              ],
            },
            { title: 'Queue', cell: (row) => h('a', { href: `#/queues/${enc(row.queue)}` }, row.queue) },
            {
              title: 'Payload',
              wide: true,
              cell: (row) => h('span', { class: 'mono clip' }, line(row.task_payload, 60) || '–'),
            },
            { title: 'Next', number: true, sort: (row) => row.next, cell: (row) => when(row.next) },
            {
              title: 'Last',
              number: true,
              cell: (row) => (row.prev ? when(row.prev) : h('span', { class: 'dim' }, 'never')),
            },
            {
              title: '',
              says: 'Run and pause',
              hidden: me.read_only,
              cell: (row) => [
                button('', {
                  icon: 'requeue',
                  kind: 'quiet-button',
                  label: `Run ${row.task_type} now`,
                  title: 'Enqueue its task now',
                  onclick: () => this.#run(row),
                }),
                button('', {
                  icon: row.paused ? 'play' : 'pause',
                  kind: 'quiet-button',
                  label: `${row.paused ? 'Resume' : 'Pause'} ${row.task_type}`,
                  onclick: () =>
                    report(
                      post(`schedule/${row.paused ? 'resume' : 'pause'}`, { id: row.id }),
                      row.paused ? `${row.task_type} fires again` : `${row.task_type} is paused: its ticks pass`,
                    ),
                }),
              ],
            },
          ],
        }),
      ),
      this.open &&
        this.#history(
          rows.find((row) => row.id === this.open),
          events,
          errors.events,
        ),
    ];
  }

  #run(row) {
    return report(post('schedule/run', { id: row.id }), ({ id, created }) =>
      created ? `Enqueued ${id}` : 'Not enqueued: an equal task exists',
    );
  }

  #history(row, events, error) {
    const title = `When ${row?.task_type ?? this.open} fired`;
    const close = h('a', { class: 'button small', href: '#/schedules' }, 'Close');
    if (error) return card(title, failure(error));
    if (!events) return card(title, loading());
    return card(
      h('div', { class: 'split' }, h('h2', {}, title), close),
      row &&
        facts([
          ['When', [row.words, ' ', h('code', {}, row.spec)]],
          ['Next', row.upcoming.map((at) => h('div', {}, clock(at), ' ', h('span', { class: 'dim' }, when(at))))],
          ['Options', row.opts.join(' ') || 'none'],
        ]),
      events.events.length
        ? table({
            label: title,
            rows: events.events,
            key: (event) => event.task_id + event.enqueued_at,
            columns: [
              { title: 'Enqueued', cell: (event) => when(event.enqueued_at) },
              { title: 'At', cell: (event) => h('span', { class: 'tabular' }, clock(event.enqueued_at)) },
              {
                title: 'Task',
                cell: (event) => h('a', { class: 'mono', href: `#/find?id=${enc(event.task_id)}` }, event.task_id),
              },
            ],
          })
        : empty('It has not fired yet', row ? `It fires next at ${clock(row.next)}.` : ''),
    );
  }
}
