// Talking to the server: reading, writing with the proof that it is us, and the live stream.

import { enc } from './format.js';

export class Refused extends Error {
  constructor(status, told) {
    super(told?.message ?? `the server answered ${status}`);
    this.status = status;
    this.told = told ?? {};
  }
}

export const me = { csrf: '', read_only: false, refresh: 1, server: '' };

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
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, told);
  return told;
}

export const get = (address) => call('GET', address);
export const post = (address, body = {}) => call('POST', address, body);

/** Learn who we are; false if nobody has logged in. */
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

/** One stream for all that a page looks at. `hear(name, value, error)`; `state(connected)`. */
export class Live {
  #source = null;
  #topics = [];

  constructor(hear, state) {
    this.hear = hear;
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
      const told = JSON.parse(event.data);
      if (source === this.#source) this.hear(told.of, told.value, told.error);
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
