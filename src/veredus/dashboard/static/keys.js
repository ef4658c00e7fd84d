// Keyboard shortcuts: one letter, or g and a letter. They are off while the user types.

import { show } from './dialogs.js';
import { h } from './dom.js';

export const PLACES = {
  o: '#/',
  f: '#/failures',
  t: '#/types',
  w: '#/workers',
  s: '#/schedules',
  l: '#/order',
  g: '#/gateway',
  r: '#/server',
};

const HELP = [
  ['/', 'find a task by its id'],
  ['j / k', 'next / previous row'],
  ['Enter', 'open the row'],
  ['x', 'select the row'],
  ['Esc', 'clear the selection'],
  ['[ / ]', 'previous / next page'],
  ['g o', 'overview'],
  ['g f', 'failures'],
  ['g t', 'task types'],
  ['g w', 'workers'],
  ['g s', 'schedules'],
  ['g l', 'order and limits'],
  ['g g', 'gateway'],
  ['g r', 'server'],
  ['t', 'light, dark or system theme'],
  ['?', 'this list'],
];

export function keyboard(app) {
  let prefix = 0;
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    if (event.target.closest('input:not([type=checkbox]), textarea, select')) {
      if (event.key === 'Escape') event.target.blur();
      return;
    }
    const handled = press(event.key);
    if (handled) event.preventDefault();
  });

  function press(key) {
    if (Date.now() - prefix < 1500 && PLACES[key]) {
      prefix = 0;
      app.go(PLACES[key]);
      return true;
    }
    prefix = 0;
    if (key === 'g') {
      prefix = Date.now();
      return true;
    }
    if (key === '/') document.querySelector('#find-id')?.focus();
    else if (key === '?') help();
    else if (key === 't') app.nextTheme();
    else if (key === 'j' || key === 'k') step(key === 'j' ? 1 : -1);
    else if (app.page?.keys?.[key]) app.page.keys[key](current()?.dataset.row);
    else return false;
    return true;
  }
}

const rows = () => [...document.querySelectorAll('#main tbody tr[data-row]')];
const current = () => document.activeElement?.closest?.('tr[data-row]');

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))];
  (next.querySelector('a') ?? next.querySelector('input, button'))?.focus();
}

export function help() {
  show(
    'Keyboard',
    h(
      'dl',
      { class: 'facts keys' },
      HELP.map(([key, text]) =>
        h(
          'div',
          {},
          h(
            'dt',
            {},
            key.split(' ').map((one) => (one === '/' && key !== '/' ? ' / ' : h('kbd', {}, one))),
          ),
          h('dd', {}, text),
        ),
      ),
    ),
  );
}
