// Schedules: when they fire and when they fired.

import { h } from '../dom.js';
import { clock, enc, line, plural, query } from '../format.js';
import { card, empty, failure, head, loading, table, when } from '../parts.js';

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
            { title: 'When', cell: (row) => h('code', {}, row.spec) },
            {
              title: 'Payload',
              wide: true,
              cell: (row) => h('span', { class: 'mono clip' }, line(row.task_payload, 60) || '–'),
            },
            { title: 'Options', cell: (row) => h('span', { class: 'dim' }, row.opts.join(' ') || '–') },
            { title: 'Next', number: true, cell: (row) => when(row.next) },
            {
              title: 'Last',
              number: true,
              cell: (row) => (row.prev ? when(row.prev) : h('span', { class: 'dim' }, 'never')),
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

  #history(row, events, error) {
    const title = `When ${row?.task_type ?? this.open} fired`;
    const close = h('a', { class: 'button small', href: '#/schedules' }, 'Close');
    if (error) return card(title, failure(error));
    if (!events) return card(title, loading());
    return card(
      h('div', { class: 'split' }, h('h2', {}, title), close),
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
