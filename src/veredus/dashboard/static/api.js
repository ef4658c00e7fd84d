// Calls to the API: reads, writes with the CSRF token, and the live stream.

import { enc } from './format.js';

export class Refused extends Error {
  constructor(status, body) {
    super(body?.message ?? `the server answered ${status}`);
    this.status = status;
    this.body = body ?? {};
  }
}

/** What `api/me` returns; `actions` and `bulk_actions` are the verbs that each state allows. */
export const me = { csrf: '', read_only: false, refresh: 1, server: '', actions: {}, bulk_actions: {} };

async function call(method, address, body) {
  let answer;
  try {
    answer = await fetch(`api/${address}`, {
      method,
      headers: body === undefined ? {} : { 'content-type': 'application/json', 'x-veredus-csrf': me.csrf },
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store',
      credentials: 'same-origin',
    });
  } catch {
    throw new Refused(0, {
      error: 'offline',
      message: 'The dashboard cannot be reached. Is `veredus dash` still running?',
    });
  }
  const content = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, content);
  return content;
}

export const get = (address) => call('GET', address);
export const post = (address, body = {}) => call('POST', address, body);

/** Loads `me`; false if there is no login. */
export async function enter() {
  try {
    Object.assign(me, await get('me'));
    return true;
  } catch (error) {
    if (error.status === 401) return false;
    throw error;
  }
}

export async function login(token) {
  Object.assign(me, await post('login', { token }));
}

/** One stream for all topics of a page. Calls `receive(name, value, error)` and `state(connected)`. */
export class Live {
  #source = null;
  #topics = [];

  constructor(receive, state) {
    this.receive = receive;
    this.state = state;
    document.addEventListener('visibilitychange', () => (document.hidden ? this.#close() : this.#open()));
    addEventListener('pagehide', () => this.#close());
  }

  watch(topics) {
    this.#topics = [...new Set(topics)];
    this.#close();
    if (!document.hidden) this.#open();
  }

  stop() {
    this.#topics = [];
    this.#close();
  }

  #open() {
    if (this.#source || !this.#topics.length) return;
    const source = new EventSource(`api/live?${this.#topics.map((topic) => `of=${enc(topic)}`).join('&')}`);
    this.#source = source;
    source.onopen = () => this.state(true);
    source.onmessage = (event) => {
      const update = JSON.parse(event.data);
      if (source === this.#source) this.receive(update.of, update.value, update.error);
    };
    source.onerror = () => {
      if (source !== this.#source) return;
      this.state(false);
      if (source.readyState === EventSource.CLOSED) {
        this.#close();
        setTimeout(() => this.#open(), 2000);
      }
    };
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }
}
