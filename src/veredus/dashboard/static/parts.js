// Elements that all pages share.

import { h, icon } from './dom.js';
import { ago, clock, enc, number, query } from './format.js';

export const badge = (state) => h('span', { class: `badge is-${state}` }, state);

/** Keyed by its text, so that redrawing never turns a button into another one while the user presses it. */
export function button(text, { icon: name, kind = '', onclick, disabled, title, label } = {}) {
  return h(
    'button',
    {
      key: `button ${label ?? text}`,
      type: 'button',
      class: `button ${kind}`,
      onclick,
      disabled,
      title,
      'aria-label': label,
    },
    name && icon(name),
    text && h('span', {}, text),
  );
}

/** A relative time; the exact time is shown on hover and read by screen readers. */
export function when(instant) {
  return instant
    ? h('time', { datetime: instant, title: clock(instant) }, ago(instant))
    : h('span', { class: 'dim' }, '–');
}

/** A long name that may be broken behind its dots, colons and underscores. */
export const name = (text) => text.split(/(?<=[._:/-])/).flatMap((part, at) => (at ? [h('wbr'), part] : [part]));

export const taskLink = (queue, id) =>
  h('a', { class: 'mono', href: `#/queues/${enc(queue)}/tasks/${enc(id)}` }, id);

/** `host:pid:id` of a worker, or the beginning of its id. */
export const workerLink = (name) => h('a', { class: 'mono', href: `#/workers${query({ worker: name })}` }, name);

export function command(text) {
  const copy = async (event) => {
    const own = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      own.setAttribute('data-copied', '');
      setTimeout(() => own.removeAttribute('data-copied'), 1200);
      toast('Copied');
    } catch {
      toast('The browser does not allow copying here: select the command and copy it by hand');
    }
  };
  return h(
    'div',
    { class: 'command' },
    h('code', {}, text),
    h(
      'button',
      { type: 'button', class: 'button quiet-button', onclick: copy, 'aria-label': `Copy: ${text}` },
      icon('copy'),
    ),
  );
}

/** Shown where there is no data yet: why, and what to do next. */
export function empty(title, text, ...commands) {
  return h(
    'div',
    { class: 'empty' },
    h('h3', {}, title),
    text && h('p', {}, text),
    commands.map((one) => command(one)),
  );
}

export function failure(error) {
  return h(
    'div',
    { class: 'empty failure', role: 'alert' },
    h('h3', {}, 'That did not work'),
    h('p', {}, error.message),
  );
}

export const loading = () => h('div', { class: 'loading', role: 'status' }, h('span', { class: 'sr' }, 'Loading'));

export function card(title, ...children) {
  const head = typeof title === 'string' ? h('h2', {}, title) : title;
  return h('section', { class: 'card' }, head && h('header', { class: 'card-head' }, head), children);
}

/** By which column each table is sorted: [title, whether the largest comes first]. */
const sorted = new Map();

function sortedRows(label, columns, rows) {
  const [title, down] = sorted.get(label) ?? [];
  const by = columns.find((column) => column.title === title)?.sort;
  if (!by) return rows;
  const compare = (a, b) => (a === b ? 0 : (a ?? '') > (b ?? '') ? 1 : -1);
  return rows.toSorted((a, b) => (down ? -1 : 1) * compare(by(a), by(b)));
}

function sortButton(label, column) {
  const [title, down] = sorted.get(label) ?? [];
  const own = title === column.title;
  const onclick = () => {
    // The first click sorts numbers down and texts up, the second one turns that, the third one ends it.
    const first = Boolean(column.number);
    if (!own) sorted.set(label, [column.title, first]);
    else if (down === first) sorted.set(label, [title, !first]);
    else sorted.delete(label);
    document.dispatchEvent(new Event('redraw'));
  };
  return h('button', { type: 'button', class: 'sort', onclick }, column.title, own && (down ? ' ↓' : ' ↑'));
}

const direction = (label, column) => {
  const [title, down] = sorted.get(label) ?? [];
  return title !== column.title ? null : down ? 'descending' : 'ascending';
};

/** Roles are explicit because phones show rows as cards, which removes the implicit ones. columns: {title, cell(row), sort?(row), number?, wide?, hidden?}; `open(row)` gives the address of a row. */
export function table({ label, columns, rows, key, open, select }) {
  const shown = columns.filter((column) => !column.hidden);
  const head = h(
    'tr',
    { role: 'row' },
    select &&
      h(
        'th',
        { class: 'pick', scope: 'col', role: 'columnheader' },
        pick('Select all on this page', select.all(), select.toggleAll),
      ),
    shown.map((column) =>
      h(
        'th',
        {
          scope: 'col',
          role: 'columnheader',
          class: column.number ? 'number' : '',
          'aria-sort': column.sort && direction(label, column),
        },
        column.sort ? sortButton(label, column) : column.title || h('span', { class: 'sr' }, column.says ?? 'Actions'),
      ),
    ),
  );
  const body = sortedRows(label, columns, rows).map((row) => {
    const name = key(row);
    return h(
      'tr',
      { key: name, role: 'row', class: select?.has(name) ? 'picked' : '', 'data-row': name, 'data-open': open?.(row) },
      select &&
        h(
          'td',
          { class: 'pick', role: 'cell' },
          pick(`Select ${name}`, select.has(name), () => select.toggle(name)),
        ),
      shown.map((column) =>
        h(
          'td',
          {
            role: 'cell',
            class: [column.number && 'number', column.wide && 'wide', !column.title && 'acts']
              .filter(Boolean)
              .join(' '),
            'data-label': column.title,
          },
          column.cell(row),
        ),
      ),
    );
  });
  return h(
    'div',
    { class: 'table-box' },
    h(
      'table',
      { role: 'table', 'aria-label': label },
      h('thead', { role: 'rowgroup' }, head),
      h('tbody', { role: 'rowgroup' }, body),
    ),
  );
}

function pick(label, checked, onchange) {
  return h('input', {
    type: 'checkbox',
    'aria-label': label,
    checked: checked === true,
    indeterminate: checked === 'some',
    onchange,
  });
}

export function facts(pairs) {
  return h(
    'dl',
    { class: 'facts' },
    pairs
      .filter(Boolean)
      .map(([name, value]) =>
        h(
          'div',
          {},
          h('dt', {}, name),
          h('dd', {}, value === '' || value === null || value === undefined ? '–' : value),
        ),
      ),
  );
}

export function stat(name, value, { note, kind = '', chart, href } = {}) {
  return h(
    href ? 'a' : 'div',
    { class: `stat ${kind}`, href },
    h('div', { class: 'stat-name' }, name),
    h('div', { class: 'stat-value' }, typeof value === 'number' ? number(value) : value),
    note && h('div', { class: 'stat-note' }, note),
    chart,
  );
}

export function head(title, { above, badges, actions, note } = {}) {
  return h(
    'div',
    { class: 'page-head' },
    h(
      'div',
      {},
      above && h('p', { class: 'above' }, above),
      h('h1', { tabindex: '-1' }, title, badges),
      note && h('p', { class: 'note' }, note),
    ),
    actions && h('div', { class: 'actions' }, actions),
  );
}

export function segmented(label, options, current, choose) {
  return h(
    'div',
    { class: 'segmented', role: 'group', 'aria-label': label },
    options.map(([value, text]) =>
      h('button', { type: 'button', 'aria-pressed': String(value === current), onclick: () => choose(value) }, text),
    ),
  );
}

export const legend = (...items) =>
  h(
    'ul',
    { class: 'legend' },
    items.map(([name, text]) => h('li', {}, h('i', { class: `dot ${name}` }), text)),
  );

export function block(text, label) {
  return h('pre', { class: 'block', tabindex: '0', 'aria-label': label }, h('code', {}, text));
}

let tray = null;

export function toast(text, kind = '') {
  if (!tray?.isConnected) {
    tray = h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite' });
    document.body.append(tray);
  }
  const one = h('div', { class: `toast ${kind}` }, text);
  tray.append(one);
  setTimeout(() => one.remove(), kind === 'bad' ? 8000 : 3500);
}

/** Findings of the doctor and the like, each with its level; `action(row)` is what can be done about it. */
export function findings(rows, action) {
  const kind = { ok: 'completed', warn: 'retry', bad: 'archived' };
  return h(
    'ul',
    { class: 'findings' },
    rows.map((row) =>
      h(
        'li',
        { class: `finding is-${row.level}` },
        h('span', { class: `badge is-${kind[row.level]}` }, row.level),
        h('div', {}, h('p', {}, row.text), row.advice && h('p', { class: 'dim' }, row.advice)),
        action?.(row),
      ),
    ),
  );
}

/** Waits for a call of the API and shows its outcome. True if it was accepted. */
export async function report(promise, text) {
  try {
    const answer = await promise;
    toast(typeof text === 'function' ? text(answer) : text);
    return true;
  } catch (error) {
    toast(error.message, 'bad');
    return false;
  }
}
