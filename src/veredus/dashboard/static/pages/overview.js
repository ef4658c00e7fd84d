// All queues at a glance.

import { enqueue } from '../actions.js';
import { me, post } from '../api.js';
import { STATES, dayBars, spanBars, sparkline, stateBar } from '../charts.js';
import { h } from '../dom.js';
import { compact, duration, enc, number, plural, rate } from '../format.js';
import { button, card, empty, failure, findings, head, legend, loading, report, segmented, stat, table } from '../parts.js';

export class Overview {
  title = 'Overview';
  days = 30;
  minutes = 60;

  constructor(route, app) {
    this.app = app;
  }

  topics() {
    return {
      overview: 'overview',
      flags: 'flags',
      history: `history?days=${this.days}`,
      throughput: `throughput?minutes=${this.minutes}`,
    };
  }

  render({ overview, history, throughput, flags }, errors) {
    if (errors.overview) return [head('Overview'), failure(errors.overview)];
    if (!overview) return [head('Overview'), loading()];
    if (!overview.queues.length) return [head('Overview'), newcomer(overview)];
    return [
      head('Overview', {
        note: me.server,
        actions: !me.read_only && button('Enqueue', { icon: 'plus', onclick: () => this.#enqueue() }),
      }),
      this.#flags(flags?.flags ?? []),
      this.#stats(overview, throughput?.total ?? []),
      this.#charts(history, throughput),
      this.#queues(overview, throughput?.queues ?? {}),
    ];
  }

  /** What needs attention, also the findings of the last check by the doctor. */
  #flags(flags) {
    const check = this.app.jobs?.find((job) => job.verb === 'diagnose' && job.status === 'done');
    const total = check?.result?.total ?? 0;
    const text = `the last check of ${check?.queue || 'every queue'} found ${plural(total, 'problem')}`;
    const rows = total ? [...flags, { kind: 'doctor', level: 'bad', text }] : flags;
    if (!rows.length) return null;
    const place = (row) =>
      row.kind === 'unserved'
        ? `#/queues/${enc(row.queue)}`
        : row.kind === 'held'
          ? `#/order?queue=${enc(row.queue)}`
          : '#/server';
    return card(
      'Needs attention',
      findings(rows, (row) => h('a', { class: 'button small', href: place(row) }, 'Show')),
    );
  }

  async #enqueue() {
    const sent = await enqueue();
    if (sent) this.app.go(`#/queues/${enc(sent.queue)}/tasks/${enc(sent.id)}`);
  }

  #stats({ aggregate, servers, rate: now, queues }, spans) {
    const slowest = queues.reduce((most, queue) => (queue.latency_ms > most.latency_ms ? queue : most));
    const failing = aggregate.processed ? (100 * aggregate.failed) / aggregate.processed : 0;
    return h(
      'div',
      { class: 'stats' },
      stat('Waiting', aggregate.pending, {
        note: `${number(aggregate.scheduled + aggregate.aggregating)} scheduled, ${number(aggregate.retry)} to retry`,
      }),
      stat('Running', aggregate.active, {
        note: `${number(servers.busy)} of ${number(servers.concurrency)} slots in ${plural(servers.processes, 'worker')}`,
        href: '#/workers',
      }),
      stat('Processed today', aggregate.processed, {
        note: `${rate(now.processed)}/s now`,
        chart: sparkline(
          spans.map((one) => one.processed),
          { width: 48, height: 18 },
        ),
      }),
      stat('Failed today', aggregate.failed, {
        note: `${failing.toFixed(failing && failing < 10 ? 1 : 0)} % of all`,
        kind: aggregate.failed ? 'is-warn' : '',
        href: '#/failures',
        chart: sparkline(
          spans.map((one) => one.failed),
          { width: 48, height: 18, name: 'bad' },
        ),
      }),
      stat('Longest wait', slowest.latency_ms ? duration(slowest.latency_ms / 1000) : '0 s', {
        note: slowest.latency_ms ? `in ${slowest.queue}` : 'no task waits',
      }),
      stat('Archived', aggregate.archived, { note: aggregate.archived ? 'failed or archived by hand' : 'none' }),
    );
  }

  #charts(history, throughput) {
    const width = this.app.chartWidth(2);
    return h(
      'div',
      { class: 'two charts' },
      card(
        h(
          'div',
          { class: 'split' },
          h('h2', {}, 'Throughput'),
          legend(['done', `attempts per ${this.minutes > 720 ? 'hour' : 'minute'}`], ['failed', 'failed']),
          this.#choice('Period', 'minutes', [
            [60, '1 h'],
            [1440, '24 h'],
            [10080, '7 d'],
          ]),
        ),
        throughput ? spanBars(throughput.total, throughput.window, width) : loading(),
      ),
      card(
        h(
          'div',
          { class: 'split' },
          h('h2', {}, 'History'),
          this.#choice('Days', 'days', [
            [7, '7 d'],
            [30, '30 d'],
            [90, '90 d'],
          ]),
        ),
        history ? dayBars(history.days, width) : loading(),
      ),
    );
  }

  #choice(label, name, options) {
    return segmented(label, options, this[name], (value) => {
      this[name] = value;
      this.app.watch();
    });
  }

  #queues({ queues }, spans) {
    return card(
      h(
        'div',
        { class: 'split' },
        h('h2', {}, 'Queues'),
        h(
          'ul',
          { class: 'legend' },
          STATES.map((state) => h('li', {}, h('i', { class: `dot bg-${state}` }), state)),
        ),
      ),
      table({
        label: 'Queues',
        rows: queues,
        key: (queue) => queue.queue,
        open: (queue) => `#/queues/${enc(queue.queue)}`,
        columns: [
          {
            title: 'Queue',
            sort: (queue) => queue.queue,
            cell: (queue) => [
              h('a', { class: 'strong', href: `#/queues/${enc(queue.queue)}` }, queue.queue),
              queue.paused && h('span', { class: 'badge is-paused' }, 'paused'),
              queue.closed && h('span', { class: 'badge is-paused' }, 'closed'),
            ],
          },
          { title: 'States', wide: true, cell: (queue) => stateBar(queue) },
          { title: 'Tasks', number: true, sort: (queue) => queue.size, cell: (queue) => compact(queue.size) },
          ...['pending', 'active', 'retry', 'archived'].map((state) => ({
            title: state[0].toUpperCase() + state.slice(1),
            number: true,
            sort: (queue) => queue[state],
            cell: (queue) => count(queue, state),
          })),
          {
            title: 'Wait',
            number: true,
            sort: (queue) => queue.latency_ms,
            cell: (queue) =>
              queue.latency_ms ? duration(queue.latency_ms / 1000) : h('span', { class: 'dim' }, '0 s'),
          },
          {
            title: 'Per second',
            number: true,
            sort: (queue) => queue.rate.processed,
            cell: (queue) =>
              h(
                'span',
                { class: 'with-spark' },
                sparkline(spans[queue.queue] ?? [], { width: 64, height: 18 }),
                rate(queue.rate.processed),
              ),
          },
          { title: 'Today', number: true, sort: (queue) => queue.processed, cell: (queue) => compact(queue.processed) },
          {
            title: 'Failed',
            number: true,
            sort: (queue) => queue.failed,
            cell: (queue) =>
              queue.failed
                ? h('span', { class: 'text-retry' }, compact(queue.failed))
                : h('span', { class: 'dim' }, '0'),
          },
          {
            title: '',
            says: 'Pause',
            hidden: me.read_only,
            cell: (queue) =>
              button('', {
                icon: queue.paused ? 'play' : 'pause',
                kind: 'quiet-button',
                label: `${queue.paused ? 'Resume' : 'Pause'} ${queue.queue}`,
                onclick: () => pause(queue),
              }),
          },
        ],
      }),
    );
  }
}

const count = (queue, state) =>
  queue[state]
    ? h('a', { class: `text-${state}`, href: `#/queues/${enc(queue.queue)}?state=${state}` }, compact(queue[state]))
    : h('span', { class: 'dim' }, '0');

export const pause = (queue) =>
  report(
    post(`queue/${queue.paused ? 'resume' : 'pause'}`, { queue: queue.queue }),
    queue.paused ? `${queue.queue} resumed` : `${queue.queue} is paused: workers finish running tasks and take no new ones`,
  );

const newcomer = ({ servers }) =>
  h(
    'div',
    { class: 'card' },
    empty(
      'No queue yet',
      servers.processes
        ? 'Workers are running and wait for the first task. Send one:'
        : 'A queue appears here when its first task is enqueued. Run the demo, or send a task by hand:',
      'veredus demo',
      `veredus task enqueue -t hello -l '{"name": "world"}'`,
      'veredus worker module:app',
    ),
  );
