// Errors of all queues, grouped by task type, class and place.

import { performErrors } from '../actions.js';
import { me } from '../api.js';
import { filled, spanBars, sparkline } from '../charts.js';
import { h } from '../dom.js';
import { className, enc, number, plural, query } from '../format.js';
import { block, button, card, empty, facts, failure, head, loading, name, segmented, table, when } from '../parts.js';

const HOURS = [
  [1, '1 h'],
  [24, '24 h'],
  [168, '7 d'],
  [720, '30 d'],
];

export class Failures {
  title = 'Failures';

  constructor(route, app) {
    this.app = app;
    this.hours = HOURS.some(([hours]) => String(hours) === route.query.hours) ? Number(route.query.hours) : 24;
    this.group = route.query.group ?? '';
  }

  topics() {
    return { errors: `errors${query({ hours: this.hours })}` };
  }

  #address(change) {
    return `#/failures${query({ hours: this.hours === 24 ? '' : this.hours, group: this.group, ...change })}`;
  }

  render({ errors }, problems) {
    if (problems.errors) return [head('Failures'), failure(problems.errors)];
    if (!errors) return [head('Failures'), loading()];
    const rows = errors.errors;
    const sum = rows.reduce((total, row) => total + row.count, 0);
    const note = `${plural(sum, 'error')} in ${plural(errors.total, 'group')}${rows.length < errors.total ? `, the ${number(rows.length)} largest are shown` : ''}`;
    const open = rows.find((row) => row.id === this.group);
    return [
      head('Failures', {
        note,
        actions: segmented('Period', HOURS, this.hours, (hours) => this.app.go(this.#address({ hours }))),
      }),
      this.group && (open ? this.#one(open, errors.window) : this.#gone()),
      rows.length
        ? card(null, this.#table(rows, errors.window))
        : h(
            'div',
            { class: 'card' },
            empty(
              'No errors in this period',
              'Errors of handlers, timeouts and lost workers are listed here, also after a task has succeeded.',
            ),
          ),
    ];
  }

  #gone() {
    return h('div', { class: 'card' }, empty('No error of this group in this period', 'Choose a longer period.'));
  }

  #table(rows, window) {
    const open = (row) => this.#address({ group: row.id });
    return table({
      label: 'Groups of errors',
      rows,
      key: (row) => row.id,
      open,
      columns: [
        {
          title: 'Error',
          sort: (row) => className(row.error_class),
          cell: (row) =>
            h(
              'a',
              {
                class: 'strong',
                href: open(row),
                title: row.error_class,
                'aria-current': row.id === this.group ? 'true' : null,
              },
              className(row.error_class),
            ),
        },
        { title: 'Type', sort: (row) => row.type, cell: (row) => h('a', { class: 'name', href: `#/types/${enc(row.type)}` }, name(row.type)) },
        {
          title: 'Text',
          wide: true,
          cell: (row) => h('span', { class: 'lines text-archived', title: row.error }, row.error || '–'),
        },
        {
          title: 'Over time',
          cell: (row) => {
            const counts = filled(row.series, window).map((one) => one.count);
            return sparkline(counts, { width: 96, height: 20, name: 'bad' });
          },
        },
        { title: 'Count', number: true, sort: (row) => row.count, cell: (row) => number(row.count) },
        { title: 'Last', number: true, sort: (row) => row.last, cell: (row) => when(row.last) },
      ],
    });
  }

  #one(row, window) {
    const act = (verb, text, icon, kind) => button(text, { icon, kind, onclick: () => performErrors(verb, row) });
    const tasks = (queue, state) =>
      h('a', { href: `#/queues/${enc(queue)}${query({ state, error_group: row.id })}` }, state);
    return card(
      h(
        'div',
        { class: 'split' },
        h('h2', {}, `${className(row.error_class)} in ${row.type}`),
        h(
          'div',
          { class: 'actions' },
          !me.read_only && act('run', 'Run again', 'play', 'small'),
          !me.read_only && act('delete', 'Delete', 'trash', 'small danger-quiet'),
          h('a', { class: 'button small', href: this.#address({ group: '' }) }, 'Close'),
        ),
      ),
      h(
        'div',
        { class: 'two' },
        h(
          'div',
          {},
          row.error && block(row.error, 'Text of the last error'),
          facts([
            ['Class', h('span', { class: 'mono' }, row.error_class)],
            ['Place', row.place && h('span', { class: 'mono' }, row.place)],
            ['Errors', number(row.count)],
            ['First', when(row.first)],
            ['Last', when(row.last)],
            [
              'Last task',
              row.task_id &&
                h('a', { class: 'mono', href: `#/queues/${enc(row.queue)}/tasks/${enc(row.task_id)}` }, row.task_id),
            ],
            [
              'Tasks',
              row.queues.map((queue) =>
                h('div', {}, `${queue}: `, tasks(queue, 'retry'), ', ', tasks(queue, 'archived')),
              ),
            ],
          ]),
        ),
        spanBars(row.series, window, this.app.chartWidth(2) - 24, { what: 'errors' }),
      ),
    );
  }
}
