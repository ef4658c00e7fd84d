// The tasks of one queue in one state: search, select and change them.

import { get, me } from '../api.js';
import { ACTIONS, perform, performAll } from '../actions.js';
import { STATES } from '../charts.js';
import { h, icon } from '../dom.js';
import { compact, enc, number, plural, query } from '../format.js';
import { button, empty, failure, loading, segmented, table } from '../parts.js';
import { columns, groupsCard, nothing } from './listing.js';

const SIZE = 50;
const FILTERS = [
  ['type', 'Type', 'email:*'],
  ['payload', 'Payload contains', '"user_id": 42'],
  ['error', 'Error contains', 'timeout'],
];

export class Tasks {
  constructor(queue, given, app) {
    this.app = app;
    this.queue = queue;
    this.page = Math.max(1, Number(given.page) || 1);
    this.group = given.group ?? '';
    this.newest = given.newest ? 'true' : '';
    const { type = '', payload = '', error = '', error_group = '' } = given;
    this.filters = { type, payload, error, error_group };
    this.picked = new Set();
    this.found = null;
    this.choose(STATES.includes(given.state) ? given.state : '');
  }

  choose(state) {
    this.state = state;
    if (state && this.#searching()) this.#search();
  }

  #searching() {
    return Object.values(this.filters).some(Boolean);
  }

  topics() {
    const { queue, state, group, page } = this;
    if (state === 'aggregating' && !group) return { groups: `groups${query({ queue })}` };
    if (!state || this.#searching()) return {};
    return { tasks: `tasks${query({ queue, state, group, page, size: SIZE, newest: this.newest })}` };
  }

  address(change) {
    const { state, group, filters, newest } = this;
    const page = this.page > 1 ? this.page : '';
    return `#/queues/${enc(this.queue)}${query({ state, group, newest, ...filters, page, ...change })}`;
  }

  render(queue, data, errors) {
    if (this.state === 'aggregating' && !this.group) return this.#groups(data.groups);
    const searching = this.#searching();
    const error = searching ? this.found?.error : errors.tasks;
    const rows = searching ? this.found?.tasks : data.tasks?.tasks;
    const total = data.tasks?.total ?? queue[this.state];
    for (const id of this.picked) if (rows && !rows.some((row) => row.id === id)) this.picked.delete(id);
    return h(
      'section',
      { class: 'card', 'aria-label': `${this.state} tasks` },
      this.#filters(),
      !searching && rows?.length > 1 && this.#order(),
      this.#selection(rows ?? [], total),
      this.#content(rows, error),
      rows && (searching ? this.#more() : this.#pager(total)),
    );
  }

  #order() {
    const first = { pending: 'Next to run', active: 'Longest running', scheduled: 'Due first', retry: 'Due first' };
    return h(
      'div',
      { class: 'order' },
      segmented(
        'Order',
        [
          ['', first[this.state] ?? 'Oldest first'],
          ['true', first[this.state] ? 'Last first' : 'Newest first'],
        ],
        this.newest,
        (newest) => this.app.go(this.address({ newest, page: '' })),
      ),
    );
  }

  #content(rows, error) {
    if (error) return failure(error);
    if (!rows) return loading();
    if (rows.length) return this.#table(rows);
    return this.#searching() ? this.#nothing() : nothing(this.state, this.queue);
  }

  #groups(groups) {
    if (!groups) return loading();
    if (!groups.groups.length) return h('section', { class: 'card' }, nothing(this.state, this.queue));
    return groupsCard(groups, (group) => this.address({ group }));
  }

  #filters() {
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
      this.filters.error_group &&
        h(
          'a',
          { class: 'chip', href: this.address({ error_group: '', page: '' }), 'aria-label': 'Leave the group of errors' },
          'one group of errors',
          icon('close'),
        ),
      FILTERS.filter(([name]) => name !== 'payload' || !me.viewer).map(([name, label, hint]) =>
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
        h('a', { class: 'button', href: this.address({ type: '', payload: '', error: '', error_group: '', page: '' }) }, 'Clear'),
    );
    // On a phone the tasks come first, and the fields are folded.
    return h(
      'details',
      { class: 'filter-box', open: innerWidth > 760 || this.#searching() || this.group !== '' },
      h('summary', {}, icon('search'), 'Find tasks'),
      form,
    );
  }

  async #search(more = false) {
    const { queue, state, group } = this;
    try {
      const found = await get(
        `tasks${query({ queue, state, group, size: SIZE, cursor: more ? this.found.cursor : '', ...this.filters })}`,
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
        h('span', { class: 'dim' }, searching ? 'All matching:' : `All ${compact(total)}:`),
        me.bulk_actions[this.state].map((verb) =>
          button(`${this.#verbName(verb)} all${searching ? ' matching' : ''}`, {
            icon: ACTIONS[verb].icon,
            kind: `small ${ACTIONS[verb].danger ? 'danger-quiet' : ''}`,
            onclick: () => performAll(verb, this.queue, this.state, { group: this.group, ...target }),
          }),
        ),
      );
    }
    return h(
      'div',
      { class: 'selection is-on', role: 'group', 'aria-label': 'Selected tasks' },
      h('strong', {}, `${number(ids.length)} selected`),
      me.actions[this.state]
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
    if (await perform(verb, this.queue, ids, this.state)) {
      this.picked.clear();
      if (this.#searching()) await this.#search();
      this.app.update();
    }
  }

  #table(rows) {
    const open = (row) => `#/queues/${enc(this.queue)}/tasks/${enc(row.id)}`;
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
    return table({
      label: `${this.state} tasks`,
      rows,
      key: (row) => row.id,
      open,
      select,
      columns: columns(this.state, open),
    });
  }

  #nothing() {
    const { scanned, cursor } = this.found;
    return empty('No match', `${plural(scanned, `${this.state} task`)} checked${cursor ? ' so far' : ''}.`);
  }

  #more() {
    return h(
      'div',
      { class: 'pager' },
      h(
        'span',
        { class: 'dim' },
        `${number(this.found.tasks.length)} found in ${number(this.found.scanned)} checked`,
      ),
      this.found.cursor && button('Search further', { onclick: () => this.#search(true) }),
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
      to(this.page - 1, 'Previous page', 'left'),
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
