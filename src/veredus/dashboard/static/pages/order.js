// The page "Order and limits": groups, order keys and limits of one queue.

import { me, post } from '../api.js';
import { meter } from '../charts.js';
import { ask } from '../dialogs.js';
import { h } from '../dom.js';
import { enc, number, query } from '../format.js';
import { badge, button, card, empty, failure, head, loading, table, toast } from '../parts.js';
import { groupsCard } from './listing.js';

export class Order {
  title = 'Order and limits';

  constructor(route, app) {
    this.app = app;
    this.queue = route.query.queue ?? '';
  }

  topics() {
    const of = query({ queue: this.queue });
    return {
      overview: 'overview',
      ...(this.queue ? { groups: `groups${of}`, orderKeys: `order-keys${of}`, limits: `limits${of}` } : {}),
    };
  }

  render({ overview, groups, orderKeys, limits }, errors) {
    if (errors.overview) return [head(this.title), failure(errors.overview)];
    if (!overview) return [head(this.title), loading()];
    const names = overview.queues.map((queue) => queue.queue);
    if (!names.length)
      return [
        head(this.title),
        h(
          'div',
          { class: 'card' },
          empty(
            'No queue yet',
            'Groups, order keys and limits belong to queues. Send a first task:',
            `veredus task enqueue -t hello -l '{}'`,
          ),
        ),
      ];
    if (!this.queue) {
      this.queue = names[0];
      queueMicrotask(() => this.app.watch());
    }
    const choose = h(
      'div',
      { class: 'filter' },
      h('label', { for: 'order-queue' }, 'Queue'),
      h(
        'select',
        {
          id: 'order-queue',
          value: this.queue,
          onchange: (event) => this.app.go(`#/order${query({ queue: event.target.value })}`),
        },
        names.map((name) => h('option', { value: name, selected: name === this.queue }, name)),
      ),
    );
    return [
      head(this.title, { note: 'Groups, order keys and limits of one queue', actions: choose }),
      errors.limits
        ? failure(errors.limits)
        : [this.#limits(limits?.limits), this.#orderKeys(orderKeys?.order_keys), this.#groups(groups)],
    ];
  }

  #limits(rows) {
    if (!rows) return card('Limits', loading());
    if (!rows.length)
      return card(
        'Limits',
        empty(
          'No limits',
          'Workers declare limits on concurrency or rate, which hold over all workers.',
          `app.limit("${this.queue}", Limit(rate="100/s"))`,
        ),
      );
    return card(
      'Limits',
      table({
        label: 'Limits',
        rows,
        key: (row) => row.scope,
        columns: [
          { title: 'Limit', cell: (row) => h('span', { class: 'strong' }, row.scope) },
          {
            title: 'At once',
            wide: true,
            cell: (row) =>
              row.concurrency
                ? h(
                    'span',
                    { class: 'with-meter' },
                    meter(row.running / row.concurrency, `${row.running} of ${row.concurrency} running`),
                    h('span', { class: 'tabular' }, `${number(row.running)} / ${number(row.concurrency)}`),
                  )
                : h('span', { class: 'tabular' }, `${number(row.running)} running`),
          },
          { title: 'Rate', number: true, cell: (row) => row.rate || '–' },
          { title: 'Started', number: true, cell: (row) => (row.rate ? number(row.begun) : '–') },
          {
            title: 'Waiting',
            number: true,
            cell: (row) => (row.waiting ? h('span', { class: 'text-retry' }, number(row.waiting)) : '0'),
          },
          {
            title: '',
            hidden: me.read_only,
            cell: (row) =>
              button('Remove', {
                kind: 'small danger-quiet',
                label: `Remove the limit ${row.scope}`,
                onclick: () => this.#remove(row),
              }),
          },
        ],
      }),
    );
  }

  async #remove(row) {
    if (
      !(await ask({
        title: `Remove the limit “${row.scope}”?`,
        text: `${number(row.waiting)} waiting tasks become pending at once. The limit returns when a worker that declares it starts.`,
        confirm: 'Remove',
        danger: true,
      }))
    )
      return;
    await post('limit/remove', { queue: this.queue, scope: row.scope }).then(
      () => toast('Removed'),
      (error) => toast(error.message, 'bad'),
    );
  }

  #orderKeys(rows) {
    if (!rows) return card('Order keys', loading());
    if (!rows.length)
      return card(
        'Order keys',
        empty(
          'No order keys',
          'Tasks with the same order key run one after the other, in the order in which they were enqueued.',
          'task.using(order_key="account-42").enqueue(...)',
        ),
      );
    return card(
      'Order keys',
      table({
        label: 'Order keys',
        rows,
        key: (row) => row.order_key,
        columns: [
          { title: 'Order key', cell: (row) => h('span', { class: 'strong' }, row.order_key) },
          { title: 'Tasks', number: true, cell: (row) => number(row.size) },
          {
            title: 'Next task',
            cell: (row) =>
              row.first
                ? h('a', { class: 'mono id', href: `#/queues/${enc(this.queue)}/tasks/${enc(row.first)}` }, row.first)
                : '–',
          },
          {
            title: 'State',
            cell: (row) =>
              row.held
                ? h('span', { class: 'badge is-archived' }, 'holds up the rest')
                : row.state
                  ? badge(row.state)
                  : 'gone',
          },
          {
            title: '',
            hidden: me.read_only,
            cell: (row) =>
              row.held &&
              button('Release', {
                kind: 'small',
                label: `Release ${row.order_key}`,
                onclick: () => this.#release(row),
              }),
          },
        ],
      }),
    );
  }

  async #release(row) {
    if (
      !(await ask({
        title: `Release “${row.order_key}”?`,
        text: `The archived task ${row.first} holds up ${number(row.size - 1)} others. They will run without it. It stays in the archive.`,
        confirm: 'Release',
        danger: true,
      }))
    )
      return;
    await post('order-key/release', { queue: this.queue, order_key: row.order_key }).then(
      () => toast('Released'),
      (error) => toast(error.message, 'bad'),
    );
  }

  #groups(groups) {
    if (!groups) return card('Groups', loading());
    if (!groups.groups.length)
      return card(
        'Groups',
        empty(
          'No group has tasks',
          'Tasks enqueued with group= wait until they are aggregated into one.',
          'task.using(group="digest").enqueue(...)',
        ),
      );
    return groupsCard(groups, (group) => `#/queues/${enc(this.queue)}${query({ state: 'aggregating', group })}`);
  }
}
