// One queue: its numbers, its actions, and its tasks by state.

import { enqueue } from '../actions.js';
import { me, post } from '../api.js';
import { STATES, dayBars, spanBars } from '../charts.js';
import { ask } from '../dialogs.js';
import { h } from '../dom.js';
import { bytes, compact, duration, enc, number, plural, query, rate } from '../format.js';
import { button, card, failure, head, legend, loading, report, stat } from '../parts.js';
import { pause } from './overview.js';
import { Tasks } from './tasks.js';

// The first of these states that has tasks is shown first.
const FIRST = ['active', 'pending', 'retry', 'archived', 'scheduled', 'aggregating', 'completed'];

export class Queue {
  charts = false;

  constructor(route, app) {
    this.app = app;
    this.name = route.parts[1];
    this.title = this.name;
    this.tasks = new Tasks(this.name, route.query, app);
    this.keys = this.tasks.keys;
  }

  topics() {
    const topics = { queue: `queue${query({ queue: this.name })}`, ...this.tasks.topics() };
    if (this.charts) {
      topics.history = `history${query({ queue: this.name, days: 30 })}`;
      topics.throughput = `throughput${query({ queue: this.name })}`;
    }
    return topics;
  }

  render(data, errors) {
    const { queue } = data;
    const above = h('a', { href: '#/' }, 'Overview');
    if (errors.queue) return [head(this.name, { above }), failure(errors.queue)];
    if (!queue) return [head(this.name, { above }), loading()];
    if (!this.tasks.state) {
      this.tasks.choose(FIRST.find((state) => queue[state]) ?? 'pending');
      queueMicrotask(() => this.app.watch());
    }
    const badges = [
      queue.paused && h('span', { class: 'badge is-paused' }, 'paused'),
      queue.closed && h('span', { class: 'badge is-paused' }, 'closed'),
    ];
    return [
      head(this.name, { above, badges, actions: this.#actions(queue) }),
      this.#stats(queue),
      this.charts && this.#charts(data),
      this.#tabs(queue),
      this.tasks.render(queue, data, errors),
    ];
  }

  #actions(queue) {
    const chart = button('Charts', {
      icon: 'overview',
      onclick: () => {
        this.charts = !this.charts;
        this.app.watch();
      },
    });
    chart.setAttribute('aria-pressed', String(this.charts));
    if (me.read_only) return [chart];
    return [
      button('Enqueue', { icon: 'plus', onclick: () => enqueue(this.name) }),
      chart,
      button(queue.paused ? 'Resume' : 'Pause', { icon: queue.paused ? 'play' : 'pause', onclick: () => pause(queue) }),
      button(queue.closed ? 'Open' : 'Close', {
        icon: 'lock',
        onclick: () => this.#close(queue),
        title: 'A closed queue refuses new tasks',
      }),
      button('Delete queue', { icon: 'trash', kind: 'danger-quiet', onclick: () => this.#delete(queue) }),
    ];
  }

  async #close(queue) {
    const closing = !queue.closed;
    if (
      closing &&
      !(await ask({
        title: `Close “${this.name}”?`,
        text: 'Veredus clients get an error when they enqueue here. Tasks in the queue still run. Go clients ignore this.',
        confirm: 'Close it',
        danger: true,
      }))
    )
      return;
    await report(
      post(`queue/${closing ? 'close' : 'open'}`, { queue: this.name }),
      closing ? 'Closed: it refuses new tasks' : 'Opened',
    );
  }

  async #delete(queue) {
    const given = await ask({
      title: `Delete the queue “${this.name}”?`,
      danger: true,
      confirm: `Delete with ${plural(queue.size, 'task')}`,
      text: `${plural(queue.size, 'task')}, its counters and its history will be deleted. This cannot be undone.`,
      fields:
        queue.size - queue.completed > 0
          ? [
              {
                name: 'force',
                label: `Also delete ${plural(queue.size - queue.completed, 'task')} that are not completed`,
                type: 'check',
              },
            ]
          : [],
    });
    if (!given) return;
    if (await report(post('queue/delete', { queue: this.name, force: Boolean(given.force) }), 'Deleting…'))
      this.app.go('#/');
  }

  #stats(queue) {
    return h(
      'div',
      { class: 'stats' },
      stat('Tasks', queue.size, { note: `${bytes(queue.memory_usage)}, estimated` }),
      stat('Longest wait', queue.latency_ms ? duration(queue.latency_ms / 1000) : '0 s', {
        note: queue.pending ? 'the next pending task' : queue.latency_ms ? 'behind an order key or a limit' : 'no task waits',
      }),
      stat('Processed today', queue.processed, {
        note: `${rate(queue.rate.processed)}/s now`,
      }),
      stat('Failed today', queue.failed, {
        note: `${number(queue.failed_total)} in all`,
        kind: queue.failed ? 'is-warn' : '',
      }),
    );
  }

  #charts({ history, throughput }) {
    const width = this.app.chartWidth(2);
    return h(
      'div',
      { class: 'two' },
      card(
        h(
          'div',
          { class: 'split' },
          h('h2', {}, 'Throughput'),
          legend(['done', 'attempts per minute'], ['failed', 'failed']),
        ),
        throughput ? spanBars(throughput.total, throughput.window, width) : loading(),
      ),
      card('Last 30 days', history ? dayBars(history.days, width) : loading()),
    );
  }

  #tabs(queue) {
    return h(
      'nav',
      { class: 'tabs', 'aria-label': 'States' },
      STATES.map((state) =>
        h(
          'a',
          {
            href: `#/queues/${enc(this.name)}?state=${state}`,
            class: `tab is-${state}`,
            'aria-current': state === this.tasks.state ? 'page' : null,
          },
          h('span', {}, state),
          h('b', {}, compact(queue[state])),
        ),
      ),
    );
  }
}
