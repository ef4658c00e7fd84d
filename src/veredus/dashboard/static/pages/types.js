// Task types: what ran of each, how long it took and how long it waited.

import { durationLines, filled, spanBars, sparkline } from '../charts.js';
import { h } from '../dom.js';
import { duration, enc, number, plural, query, rate } from '../format.js';
import { card, empty, failure, head, legend, loading, name, segmented, stat, table } from '../parts.js';

const MINUTES = [
  [60, '1 h'],
  [720, '12 h'],
  [1440, '24 h'],
  [10080, '7 d'],
  [43200, '30 d'],
];
const SHARES = ['p50', 'p95', 'p99'];
const seconds = (value) => (value === null ? h('span', { class: 'dim' }, '–') : duration(value));

export class Types {
  constructor(route, app) {
    this.app = app;
    this.name = route.parts[1] ?? '';
    this.title = this.name || 'Task types';
    this.minutes = MINUTES.some(([minutes]) => String(minutes) === route.query.minutes)
      ? Number(route.query.minutes)
      : 60;
  }

  topics() {
    const type = this.name.replace(/[*?[]/g, '[$&]'); // the address takes a pattern
    return { types: `types${query({ minutes: this.minutes, type })}` };
  }

  #address(name, minutes = this.minutes) {
    return `#/types${name ? `/${enc(name)}` : ''}${query({ minutes: minutes === 60 ? '' : minutes })}`;
  }

  render({ types }, errors) {
    const above = this.name && h('a', { href: this.#address('') }, 'Task types');
    const actions = segmented('Period', MINUTES, this.minutes, (minutes) =>
      this.app.go(this.#address(this.name, minutes)),
    );
    const top = (note) => head(this.title, { above, actions, note });
    if (errors.types) return [top(), failure(errors.types)];
    if (!types) return [top(), loading()];
    if (!types.types.length) {
      return [
        top(),
        h(
          'div',
          { class: 'card' },
          empty(
            'Nothing ran in this period',
            'Workers of Veredus record what they run, per minute for 12 hours and per hour for 30 days. Go workers record nothing here.',
          ),
        ),
      ];
    }
    return this.name
      ? [top(), ...this.#one(types.types[0], types.window)]
      : [top(plural(types.types.length, 'type')), card(null, this.#table(types))];
  }

  #table({ types, window }) {
    const open = (row) => this.#address(row.type);
    return table({
      label: 'Task types',
      rows: types,
      key: (row) => row.type,
      open,
      columns: [
        { title: 'Type', sort: (row) => row.type, cell: (row) => h('a', { class: 'strong', href: open(row) }, name(row.type)) },
        {
          title: 'Over time',
          cell: (row) =>
            sparkline(
              filled(row.series, window).map((one) => one.processed),
              { width: 96, height: 20 },
            ),
        },
        { title: 'Attempts', number: true, sort: (row) => row.processed, cell: (row) => number(row.processed) },
        {
          title: 'Failed',
          number: true,
          sort: (row) => row.failed,
          cell: (row) => h('span', { class: row.failed ? 'text-retry' : 'dim' }, number(row.failed)),
        },
        ...SHARES.map((share) => ({
          title: `Run ${share}`,
          number: true,
          sort: (row) => row.run_s[share],
          cell: (row) => seconds(row.run_s[share]),
        })),
        ...SHARES.map((share) => ({
          title: `Wait ${share}`,
          number: true,
          sort: (row) => row.wait_s[share],
          cell: (row) => seconds(row.wait_s[share]),
        })),
      ],
    });
  }

  #one(row, window) {
    const width = this.app.chartWidth(2);
    const spans = filled(row.series, window);
    const days = this.minutes >= 1440;
    const lines = (name) =>
      durationLines(
        spans.map((one) => ({ ms: one.ms, ...one[name] })),
        SHARES,
        width,
        { days },
      );
    const failing = row.processed ? (100 * row.failed) / row.processed : 0;
    const three = (of) => SHARES.slice(1).map((share) => `${share} ${of[share] === null ? '–' : duration(of[share])}`);
    return [
      h(
        'div',
        { class: 'stats' },
        stat('Attempts', row.processed, { note: `${rate((row.processed * 60) / row.window_s)} per minute` }),
        stat('Failed', row.failed, {
          note: `${failing.toFixed(failing && failing < 10 ? 1 : 0)} % of all`,
          kind: row.failed ? 'is-warn' : '',
        }),
        stat('Run time, p50', seconds(row.run_s.p50), { note: three(row.run_s).join(', ') }),
        stat('Waiting time, p50', seconds(row.wait_s.p50), { note: three(row.wait_s).join(', ') }),
      ),
      card(
        h('div', { class: 'split' }, h('h2', {}, 'Attempts'), legend(['done', 'ended'], ['failed', 'failed'])),
        spanBars(row.series, window, this.app.chartWidth(1)),
      ),
      h(
        'div',
        { class: 'two' },
        ...[
          ['Run time', 'run_s'],
          ['Waiting time', 'wait_s'],
        ].map(([title, name]) =>
          card(
            h('div', { class: 'split' }, h('h2', {}, title), legend(...SHARES.map((share) => [share, share]))),
            lines(name),
          ),
        ),
      ),
    ];
  }
}
