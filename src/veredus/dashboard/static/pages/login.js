// The login page.

import { login } from '../api.js';
import { h } from '../dom.js';
import { command } from '../parts.js';

export function loginPage(entered, problem = '') {
  const warning = h('p', { class: 'warning', role: 'alert' }, problem);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await login(event.target.elements.token.value.trim());
      entered();
    } catch (error) {
      warning.textContent = error.status === 401 ? 'Wrong token.' : error.message;
      event.target.elements.token.select();
    }
  };
  return h(
    'main',
    { class: 'login', id: 'main' },
    h(
      'form',
      { class: 'card', onsubmit: submit },
      h('h1', {}, 'Veredus'),
      h(
        'p',
        { class: 'dim' },
        'The dashboard printed an address with the token when it started, unless a token was given to it:',
      ),
      command('veredus dash'),
      h(
        'div',
        { class: 'field' },
        h('label', { for: 'token' }, 'Token'),
        h('input', {
          id: 'token',
          name: 'token',
          type: 'password',
          autocomplete: 'current-password',
          required: true,
          autofocus: true,
        }),
      ),
      warning,
      h('div', { class: 'buttons' }, h('button', { type: 'submit', class: 'button primary' }, 'Log in')),
    ),
  );
}
