// The application: login, routing, live data, and drawing the current page when its data changes.

import { Live, enter, get, login, me, post } from './api.js';
import { h, icon, morph } from './dom.js';
import { dec, enc } from './format.js';
import { jobsDock } from './jobs.js';
import { help, keyboard } from './keys.js';
import { toast } from './parts.js';
import { Failures } from './pages/failures.js';
import { Gateway } from './pages/gateway.js';
import { loginPage } from './pages/login.js';
import { Missing } from './pages/missing.js';
import { Overview } from './pages/overview.js';
import { Queue } from './pages/queue.js';
import { Schedules } from './pages/schedules.js';
import { Server } from './pages/server.js';
import { Task } from './pages/task.js';
import { Order } from './pages/order.js';
import { Types } from './pages/types.js';
import { Workers } from './pages/workers.js';

const NAV = [
  ['overview', 'Overview', '#/'],
  ['failures', 'Failures', '#/failures'],
  ['types', 'Task types', '#/types', 'Types'],
  ['workers', 'Workers', '#/workers'],
  ['schedules', 'Schedules', '#/schedules'],
  ['order', 'Order & limits', '#/order', 'Order'],
  ['gateway', 'Gateway', '#/gateway'],
  ['server', 'Server', '#/server'],
];
const PAGES = {
  failures: Failures,
  types: Types,
  workers: Workers,
  schedules: Schedules,
  order: Order,
  gateway: Gateway,
  server: Server,
};
/** Which page an address is of. */
function pageOf([place = '', queue, list, id]) {
  if (place === 'queues' && queue && list === 'tasks' && id) return Task;
  if (place === 'queues' && queue && list === undefined) return Queue;
  return place === '' ? Overview : (PAGES[place] ?? Missing);
}

const THEMES = ['auto', 'light', 'dark'];

class App {
  page = null;
  jobs = null;
  connected = null;
  data = {};
  errors = {};
  #names = {};
  #drawn = false;
  #shell = document.querySelector('#shell');

  constructor() {
    this.theme = THEMES.includes(localStorage.getItem('veredus-theme'))
      ? localStorage.getItem('veredus-theme')
      : 'auto';
    document.documentElement.dataset.theme = this.theme;
    this.live = new Live(
      (name, value, error) => this.#receive(name, value, error),
      (connected) => this.#state(connected),
    );
    addEventListener('hashchange', () => this.#route());
    addEventListener('resize', () => this.update());
    document.addEventListener('redraw', () => this.update());
    setInterval(() => !document.hidden && this.page && this.update(), 1000); // updates times such as "3 s ago"
    document.addEventListener('click', (event) => this.#open(event));
    keyboard(this);
  }

  async begin() {
    const given = location.hash.match(/^#token=(.*)$/);
    try {
      if (given) {
        // Remove the token from the address bar and the history.
        history.replaceState(null, '', location.pathname + location.search + '#/');
        await login(dec(given[1]));
      }
      if (!(await enter())) return this.#showLogin();
    } catch (error) {
      return this.#showLogin(
        error.status === 401 ? 'The token in the address is wrong.' : error.message,
      );
    }
    this.#route();
  }

  go(address) {
    if (location.hash === address) this.#route();
    else location.hash = address;
  }

  /** Subscribe to the topics of the current page. */
  watch() {
    const topics = this.page.topics();
    this.#names = Object.fromEntries(Object.entries(topics).map(([alias, name]) => [name, alias]));
    const kept = new Set(Object.values(topics));
    for (const [alias, name] of Object.entries(this.shown ?? {})) {
      if (!kept.has(name)) {
        delete this.data[alias];
        delete this.errors[alias];
      }
    }
    this.shown = topics;
    this.live.watch([...Object.values(topics), 'jobs']);
    this.update();
  }

  update() {
    if (this.#drawn || !this.page) return;
    this.#drawn = true;
    requestAnimationFrame(() => {
      this.#drawn = false;
      if (this.page) this.#draw();
    });
  }

  /** The width in pixels of a chart in one of several columns. */
  chartWidth(columns) {
    const room =
      Math.min(1384, document.querySelector('#main')?.clientWidth ?? innerWidth) - (innerWidth <= 760 ? 32 : 64);
    return Math.max(240, Math.floor((innerWidth <= 1000 ? room : (room - 16 * (columns - 1)) / columns) - 42));
  }

  nextTheme() {
    this.theme = THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length];
    localStorage.setItem('veredus-theme', this.theme);
    document.documentElement.dataset.theme = this.theme;
    toast({ auto: 'System theme', light: 'Light', dark: 'Dark' }[this.theme]);
    this.update();
  }

  #receive(name, value, error) {
    if (name === 'jobs') this.jobs = value?.jobs ?? [];
    const alias = this.#names[name];
    if (alias) {
      if (error) {
        if (error.status === 401) return this.#showLogin();
        this.errors[alias] = error;
      } else {
        delete this.errors[alias];
        this.data[alias] = value;
      }
    }
    this.update();
  }

  async #state(connected) {
    if (connected === this.connected) return;
    this.connected = connected;
    this.update();
    if (!connected && this.page) {
      const entered = await enter().catch(() => null);
      if (entered === false) this.#showLogin('You were logged out because the dashboard has a new token.');
    }
  }

  #showLogin(problem) {
    this.page = null;
    this.live.stop();
    document.title = 'Veredus';
    this.#shell.className = '';
    this.#shell.replaceChildren(loginPage(() => this.begin(), problem));
  }

  #route() {
    if (/^#token=/.test(location.hash)) return this.begin();
    if (location.hash === '#main') return document.querySelector('#main')?.focus();
    const [path, search = ''] = location.hash.replace(/^#/, '').split('?');
    const parts = path.split('/').slice(1).map(dec);
    const query = Object.fromEntries(
      search
        .split('&')
        .filter(Boolean)
        .map((pair) => {
          const [name, ...value] = pair.split('=');
          return [name, dec(value.join('='))];
        }),
    );
    const route = { parts, query };
    if (parts[0] === 'find') return this.#find(query.id ?? '');
    const before = this.page;
    this.place = PAGES[parts[0]] ? parts[0] : 'overview';
    const kind = pageOf(parts);
    this.data = {};
    this.errors = {};
    this.shown = {};
    this.page = new kind(route, this);
    const same = before && before.constructor === kind && before.title === this.page.title;
    if (same && kind === Queue) {
      this.page.charts = before.charts;
      this.data = before.lastData ?? {};
      delete this.data.tasks;
      delete this.data.groups;
    }
    this.watch();
    if (before && !same) {
      scrollTo(0, 0);
      requestAnimationFrame(() => document.querySelector('#main h1')?.focus({ preventScroll: true }));
    }
  }

  async #find(id) {
    try {
      const { queues } = await get(`find?id=${enc(id)}`);
      location.replace(`#/queues/${enc(queues[0])}/tasks/${enc(id)}`);
    } catch (error) {
      toast(error.message, 'bad');
      if (!this.page) this.go('#/');
      else history.back();
    }
  }

  /** A click anywhere on a row opens it. */
  #open(event) {
    if (event.target.closest('a, button, input, select, label, summary') || String(getSelection())) return;
    const row = event.target.closest('tr[data-open]');
    if (row) this.go(row.dataset.open);
  }

  #draw() {
    document.title = `${this.page.title} · Veredus`;
    this.page.lastData = this.data;
    const next = h(
      'div',
      { id: 'shell', class: 'shell' },
      this.#side(),
      this.#top(),
      h('main', { id: 'main', tabindex: '-1' }, this.page.render(this.data, this.errors)),
      jobsDock(this.jobs, () => this.update()),
    );
    this.#shell = morph(this.#shell, next);
    const tab = document.querySelector('.tab[aria-current]');
    if (tab && this.page.tab !== tab.textContent.replace(/[\d.KM]+$/, '')) {
      this.page.tab = tab.textContent.replace(/[\d.KM]+$/, '');
      tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft - 24;
    }
  }

  #side() {
    return h(
      'nav',
      { class: 'side', 'aria-label': 'Dashboard' },
      h('a', { class: 'brand', href: '#/' }, h('span', { class: 'mark', 'aria-hidden': 'true' }), 'Veredus'),
      h(
        'ul',
        {},
        NAV.map(([place, text, href, short = text]) =>
          h(
            'li',
            {},
            h('a', { href, 'aria-current': place === this.place ? 'page' : null }, icon(place), h('span', {}, innerWidth > 760 ? text : short)),
          ),
        ),
      ),
      h('div', { class: 'side-foot' }, me.read_only && h('span', { class: 'badge is-paused' }, me.viewer ? 'viewer' : 'read-only')),
    );
  }

  #top() {
    const find = (event) => {
      event.preventDefault();
      const id = event.target.elements.id.value.trim();
      if (id) this.go(`#/find?id=${enc(id)}`);
    };
    const state =
      this.connected === false ? ['is-off', 'Disconnected'] : this.connected ? ['is-on', 'Live'] : ['', 'Connecting'];
    return h(
      'header',
      { class: 'top' },
      h(
        'form',
        { class: 'find', role: 'search', 'aria-label': 'Find a task', onsubmit: find },
        icon('search'),
        h('input', {
          id: 'find-id',
          name: 'id',
          'aria-label': 'Find a task by its id',
          placeholder: 'Task id',
          autocomplete: 'off',
          spellcheck: 'false',
        }),
        h('kbd', { 'aria-hidden': 'true' }, '/'),
      ),
      h(
        'div',
        { class: 'top-right' },
        h('span', { class: `pulse ${state[0]}`, role: 'status' }, state[1]),
        h(
          'button',
          {
            type: 'button',
            class: 'button quiet-button',
            onclick: () => this.nextTheme(),
            'aria-label': `Colours: ${this.theme}. Change`,
            title: 'Light, dark or system theme (t)',
          },
          icon({ auto: 'auto', light: 'sun', dark: 'moon' }[this.theme]),
        ),
        h(
          'button',
          {
            type: 'button',
            class: 'button quiet-button',
            onclick: help,
            'aria-label': 'Keyboard shortcuts',
            title: 'Keyboard (?)',
          },
          icon('help'),
        ),
        h(
          'button',
          {
            type: 'button',
            class: 'button quiet-button',
            onclick: () => this.#leave(),
            'aria-label': 'Log out',
            title: 'Log out',
          },
          icon('out'),
        ),
      ),
    );
  }

  async #leave() {
    await post('logout').catch(() => {});
    this.#showLogin();
  }
}

const app = new App();
app.begin();
