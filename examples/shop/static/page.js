// Orders something, and shows how it proceeds. The session survives lost connections and reloads.

import { connect } from './js/veredus.js';

const customer = sessionStorage.customer ??= `guest-${crypto.randomUUID()}`;
const { gateway } = await (await fetch('config.json')).json();
const session = await connect(gateway, { token: customer, storage: true });
const form = document.querySelector('#order');

function show(task, text, share) {
  const list = document.querySelector('#orders');
  let entry = document.getElementById(task);
  if (!entry) {
    entry = Object.assign(document.createElement('li'), { id: task });
    entry.append(Object.assign(document.createElement('progress'), { value: 0 }), ' ', document.createElement('span'));
    list.prepend(entry);
  }
  entry.querySelector('span').textContent = text;
  if (share !== undefined) entry.querySelector('progress').value = share;
}

session.on('message', ({ type, body }) => {
  if (type === 'task.progress') show(body.task, body.note, body.share);
  if (type === 'task.ended') show(body.task, body.result ?? body.error, 1);
});

form.addEventListener('submit', async (event) => {
  event.preventDefault();
  const basket = { customer, email: `${customer}@example.org`, ...Object.fromEntries(new FormData(form)) };
  await fetch('orders', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(basket) });
});
form.querySelector('button').disabled = false;
