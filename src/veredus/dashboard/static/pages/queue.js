// One queue: its numbers, and its tasks by state with search, selection and everything that can be done with them.

import { get, me, post } from '../api.js';
import { ACTIONS, ALLOWED, forAll, perform, performAll } from '../actions.js';
import { STATES, dayBars, rateChart, sparkline } from '../charts.js';
import { ask } from '../dialogs.js';
import { h, icon } from '../dom.js';
import { bytes, compact, duration, enc, line, number, plural, query, rate } from '../format.js';
import { button, card, empty, failure, head, loading, stat, table, toast, when } from '../parts.js';
import { legend, pause } from './overview.js';

const SIZE = 50;
const FILTERS = [
  ['type', 'Type', 'email:*'],
  ['payload', 'Payload contains', '"user_id": 42'],
  ['error', 'Error contains', 'timeout'],
];

export class Queue {
  constructor(route, app) {
    this.app = app;
    this.name = route.parts[1];
    this.title = this.name;
    const given = route.query;
    this.state = STATES.includes(given.state) ? given.state : '';
    this.page = Math.max(1, Number(given.page) || 1);
    this.group = given.group ?? '';
    this.filters = { type: given.type ?? '', payload: given.payload ?? '', error: given.error ?? '' };
    this.picked = new Set();
    this.found = null;
    this.charts = false;
    if (this.#searching() && this.state) this.#search();
  }

  #searching() {
    return Object.values(this.filters).some(Boolean);
  }

  topics() {
    const topics = { queue: `queue${query({ queue: this.name })}` };
    const grouped = this.state !== 'aggregating' || this.group;
    if (this.state && !this.#searching() && grouped) {
      topics.tasks = `tasks${query({ queue: this.name, state: this.state, group: this.group, page: this.page, size: SIZE })}`;
    }
    if (this.state === 'aggregating' && !this.group) topics.groups = `groups${query({ queue: this.name })}`;
    if (this.charts) topics.history = `history${query({ queue: this.name, days: 30 })}`;
    return topics;
  }

  address(change) {
    return `#/queues/${enc(this.name)}${query({ state: this.state, group: this.group, ...this.filters, page: this.page > 1 ? this.page : '', ...change })}`;
  }

  render(data, errors) {
    const { queue } = data;
    const above = h('a', { href: '#/' }, 'Overview');
    if (errors.queue) return [head(this.name, { above }), failure(errors.queue)];
    if (!queue) return [head(this.name, { above }), loading()];
    if (!this.state) {
      // Where the most interesting tasks are: what runs or waits, then what failed.
      this.state =
        ['active', 'pending', 'retry', 'archived', 'scheduled', 'aggregating', 'completed'].find(
          (state) => queue[state],
        ) ?? 'pending';
      if (this.#searching()) this.#search();
      queueMicrotask(() => this.app.watch());
    }
    const badges = [
      queue.paused && h('span', { class: 'badge is-paused' }, 'paused'),
      queue.closed && h('span', { class: 'badge is-paused' }, 'closed'),
    ];
    return [
      head(this.name, { above, badges, actions: this.#actions(queue) }),
      this.#stats(queue),
      this.charts && this.#charts(queue, data.history),
      this.#tabs(queue),
      this.#list(queue, data, errors),
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
      chart,
      button(queue.paused ? 'Resume' : 'Pause', { icon: queue.paused ? 'play' : 'pause', onclick: () => pause(queue) }),
      button(queue.closed ? 'Open' : 'Close', {
        icon: 'lock',
        onclick: () => this.#close(queue),
        title: 'A closed queue takes in no new tasks',
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
        text: 'Veredus clients get an error when they enqueue here; what is in the queue goes on. Go clients do not ask.',
        confirm: 'Close it',
        danger: true,
        keep: 'Keep it open',
      }))
    )
      return;
    await this.#say(
      post(`queue/${closing ? 'close' : 'open'}`, { queue: this.name }),
      closing ? 'Closed: it takes in no new tasks' : 'Open again',
    );
  }

  async #delete(queue) {
    const given = await ask({
      title: `Delete the queue “${this.name}”?`,
      danger: true,
      keep: 'Keep',
      confirm: `Delete with ${plural(queue.size, 'task')}`,
      text: `${plural(queue.size, 'task')}, its counters and its history will be gone for good. This cannot be undone.`,
      fields:
        queue.size - queue.completed > 0
          ? [
              {
                name: 'force',
                label: `Yes, also the ${plural(queue.size - queue.completed, 'task')} not yet done`,
                type: 'check',
              },
            ]
          : [],
    });
    if (!given) return;
    if (await this.#say(post('queue/delete', { queue: this.name, force: Boolean(given.force) }), 'Deleting…'))
      this.app.go('#/');
  }

  async #say(promise, text) {
    try {
      await promise;
      toast(text);
      return true;
    } catch (error) {
      toast(error.message, 'bad');
      return false;
    }
  }

  #stats(queue) {
    const last = queue.recent.at(-1) ?? [0, 0, 0];
    return h(
      'div',
      { class: 'stats' },
      stat('Tasks', queue.size, { note: `${bytes(queue.memory_usage)}, estimated` }),
      stat('Longest wait', queue.latency_ms ? duration(queue.latency_ms / 1000) : '0 s', {
        note: queue.pending ? 'the next pending task' : 'nothing waits',
      }),
      stat('Processed today', queue.processed, {
        note: `${rate(last[1])}/s now`,
        chart: sparkline(queue.recent.map((one) => one[1]).slice(-60), { width: 48, height: 18 }),
      }),
      stat('Failed today', queue.failed, {
        note: `${number(queue.failed_total)} in all`,
        kind: queue.failed ? 'is-warn' : '',
        chart: sparkline(queue.recent.map((one) => one[2]).slice(-60), { width: 48, height: 18, name: 'bad' }),
      }),
    );
  }

  #charts(queue, history) {
    const width = this.app.chartWidth(2);
    return h(
      'div',
      { class: 'two' },
      card(
        h(
          'div',
          { class: 'split' },
          h('h2', {}, 'Throughput'),
          legend(['done', 'tasks per second'], ['failed', 'failed']),
        ),
        rateChart(queue.recent, width),
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
            'aria-current': state === this.state ? 'page' : null,
          },
          h('span', {}, state),
          h('b', {}, compact(queue[state])),
        ),
      ),
    );
  }

  #list(queue, data, errors) {
    if (this.state === 'aggregating' && !this.group) return this.#groups(data.groups);
    const searching = this.#searching();
    const error = searching ? this.found?.error : errors.tasks;
    const rows = searching ? this.found?.tasks : data.tasks?.tasks;
    const total = data.tasks?.total ?? queue[this.state];
    for (const id of this.picked) if (rows && !rows.some((row) => row.id === id)) this.picked.delete(id);
    return h(
      'section',
      { class: 'card', 'aria-label': `${this.state} tasks` },
      this.#search_form(),
      this.#selection(rows ?? [], total),
      error ? failure(error) : !rows ? loading() : rows.length ? this.#table(rows) : this.#nothing(searching),
      rows && (searching ? this.#more() : this.#pager(total)),
    );
  }

  #groups(groups) {
    if (!groups) return loading();
    if (!groups.groups.length) return h('section', { class: 'card' }, this.#nothing(false));
    return card(
      `Groups (${number(groups.total)})`,
      table({
        label: 'Groups',
        rows: groups.groups,
        key: (row) => row.group,
        open: (row) => this.address({ group: row.group }),
        columns: [
          {
            title: 'Group',
            cell: (row) => h('a', { class: 'strong', href: this.address({ group: row.group }) }, row.group),
          },
          { title: 'Tasks', number: true, cell: (row) => number(row.size) },
        ],
      }),
    );
  }

  #search_form() {
    const submit = (event) => {
      event.preventDefault();
      const given = Object.fromEntries(
        [...new FormData(event.target)].map(([name, value]) => [name, String(value).trim()]),
      );
      this.app.go(this.address({ ...given, page: '' }));
    };
    const form = h(
      'form',
      { class: 'filters', onsubmit: submit, role: 'search', 'aria-label': 'Find tasks' },
      this.group &&
        h(
          'a',
          { class: 'chip', href: this.address({ group: '' }), 'aria-label': `Leave the group ${this.group}` },
          `group ${this.group}`,
          icon('close'),
        ),
      FILTERS.map(([name, label, hint]) =>
        h(
          'div',
          { class: 'filter' },
          h('label', { for: `filter-${name}` }, label),
          h('input', {
            id: `filter-${name}`,
            name,
            value: this.filters[name],
            placeholder: hint,
            autocomplete: 'off',
            spellcheck: 'false',
          }),
        ),
      ),
      h('button', { type: 'submit', class: 'button' }, icon('search'), h('span', {}, 'Find')),
      this.#searching() &&
        h('a', { class: 'button', href: this.address({ type: '', payload: '', error: '', page: '' }) }, 'Clear'),
    );
    // On a phone the tasks come first: the fields open when somebody wants them.
    return h(
      'details',
      { class: 'filter-box', open: innerWidth > 760 || this.#searching() || this.group !== '' },
      h('summary', {}, icon('search'), 'Find tasks'),
      form,
    );
  }

  async #search(more = false) {
    try {
      const found = await get(
        `tasks${query({ queue: this.name, state: this.state, group: this.group, size: SIZE, cursor: more ? this.found.cursor : '', ...this.filters })}`,
      );
      this.found = more
        ? { ...found, tasks: [...this.found.tasks, ...found.tasks], scanned: this.found.scanned + found.scanned }
        : found;
    } catch (error) {
      this.found = { error };
    }
    this.app.update();
  }

  #selection(rows, total) {
    if (me.read_only || !rows.length) return null;
    const ids = [...this.picked];
    const searching = this.#searching();
    const target = searching ? { filters: this.filters } : { total };
    if (!ids.length) {
      return h(
        'div',
        { class: 'selection' },
        h('span', { class: 'dim' }, searching ? 'All that fit:' : `All ${compact(total)}:`),
        forAll(this.state).map((verb) =>
          button(`${this.#verbName(verb)} all${searching ? ' that fit' : ''}`, {
            icon: ACTIONS[verb].icon,
            kind: `small ${ACTIONS[verb].danger ? 'danger-quiet' : ''}`,
            onclick: () => performAll(verb, this.name, this.state, { group: this.group, ...target }),
          }),
        ),
      );
    }
    return h(
      'div',
      { class: 'selection is-on', role: 'group', 'aria-label': 'Selected tasks' },
      h('strong', {}, `${number(ids.length)} selected`),
      ALLOWED[this.state]
        .filter((verb) => !ACTIONS[verb].single || ids.length === 1)
        .map((verb) =>
          button(ACTIONS[verb].name, {
            icon: ACTIONS[verb].icon,
            kind: `small ${ACTIONS[verb].danger ? 'danger-quiet' : ''}`,
            onclick: () => this.#do(verb, ids),
          }),
        ),
      button('Clear', {
        kind: 'small quiet-button',
        onclick: () => {
          this.picked.clear();
          this.app.update();
        },
      }),
    );
  }

  #verbName(verb) {
    return verb === 'run' && ['archived', 'completed'].includes(this.state)
      ? 'Requeue'
      : verb === 'run'
        ? 'Run'
        : ACTIONS[verb].name;
  }

  async #do(verb, ids) {
    if (await perform(verb, this.name, ids, this.state)) {
      this.picked.clear();
      if (this.#searching()) await this.#search();
      this.app.update();
    }
  }

  #table(rows) {
    const state = this.state;
    const select = me.read_only
      ? null
      : {
          has: (id) => this.picked.has(id),
          toggle: (id) => {
            this.picked.has(id) ? this.picked.delete(id) : this.picked.add(id);
            this.app.update();
          },
          all: () => (this.picked.size === 0 ? false : this.picked.size === rows.length ? true : 'some'),
          toggleAll: () => {
            const all = this.picked.size === rows.length;
            this.picked = new Set(all ? [] : rows.map((row) => row.id));
            this.app.update();
          },
        };
    const open = (row) => `#/queues/${enc(this.name)}/tasks/${enc(row.id)}`;
    const failed = state === 'retry' || state === 'archived';
    return table({
      label: `${state} tasks`,
      rows,
      key: (row) => row.id,
      open,
      select,
      columns: [
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
          cell: (row) =>
            Date.parse(row.next_process_at) > 9e15 || row.next_process_at?.startsWith('2286')
              ? 'its turn'
              : when(row.next_process_at),
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
      ],
    });
  }

  #nothing(searching) {
    if (searching)
      return empty(
        'Nothing fits',
        `Looked at ${plural(this.found.scanned, `${this.state} task`)}${this.found.cursor ? ' so far' : ''}.`,
      );
    const texts = {
      active: [
        'Nothing runs at the moment',
        'Tasks appear here while a worker has them. To run what waits, start a worker:',
        'veredus worker module:app',
      ],
      pending: [
        'Nothing waits',
        'Tasks that are due stand here in the order in which they will run. Send one:',
        `veredus task enqueue -q ${this.name} -t hello -l '{}'`,
      ],
      aggregating: [
        'No group is collecting',
        'Tasks that are enqueued with group= wait here until they become one.',
        null,
      ],
      scheduled: [
        'Nothing is planned',
        'Tasks with a delay or a time wait here. Send one that is due in ten minutes:',
        `veredus task enqueue -q ${this.name} -t hello -l '{}' --in 10m`,
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
        `veredus task enqueue -q ${this.name} -t hello -l '{}' --retention 1h`,
      ],
    };
    const [title, text, example] = texts[this.state];
    return empty(title, text, ...(example ? [example] : []));
  }

  #more() {
    return h(
      'div',
      { class: 'pager' },
      h(
        'span',
        { class: 'dim' },
        `${number(this.found.tasks.length)} found among ${number(this.found.scanned)} looked at`,
      ),
      this.found.cursor && button('Look further', { onclick: () => this.#search(true) }),
    );
  }

  #pager(total) {
    const pages = Math.max(1, Math.ceil(total / SIZE));
    if (pages === 1 && this.page === 1) return null;
    const to = (page, text, name) =>
      page >= 1 && page <= pages && page !== this.page
        ? h(
            'a',
            { class: 'button', href: this.address({ page: page > 1 ? page : '' }), 'aria-label': text },
            icon(name),
          )
        : h('span', { class: 'button', 'aria-disabled': 'true' }, icon(name));
    return h(
      'nav',
      { class: 'pager', 'aria-label': 'Pages of the list' },
      to(this.page - 1, 'Page before', 'left'),
      h('span', {}, `Page ${number(this.page)} of ${number(pages)}`),
      to(this.page + 1, 'Next page', 'right'),
      h('a', { class: 'button small', href: this.address({ page: pages }) }, 'Last'),
    );
  }

  keys = {
    '[': () => this.page > 1 && this.app.go(this.address({ page: this.page - 1 })),
    ']': () => this.app.go(this.address({ page: this.page + 1 })),
    x: (row) => {
      if (!row || me.read_only) return;
      this.picked.has(row) ? this.picked.delete(row) : this.picked.add(row);
      this.app.update();
    },
    Escape: () => {
      this.picked.clear();
      this.app.update();
    },
  };
}
