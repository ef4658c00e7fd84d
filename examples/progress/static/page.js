// One job: the page: starts jobs, shows what arrives, and checks in public that nothing is missing.

import { Session } from './veredus.js';

const $ = (id) => document.getElementById(id);
const ROWS = 300; // the journal shows the last ones; the check counts all of them
const canvas = $('picture');
const painter = canvas.getContext('2d');

const seen = { first: 0, last: 0, count: 0, missing: 0, disorder: 0 };
let job = 0;
let cutting;

const { gateways } = await (await fetch('config.json')).json();
const session = new Session(gateways, { token: guest(), storage: true });
globalThis.veredus = { session, seen }; // for the curious, in the console

session.on('state', ({ state, delay }) => {
  $('state').dataset.state = state;
  $('state').textContent = delay === undefined ? state : `reconnecting in ${delay.toFixed(1)} s`;
  // Not while it reconnects: a button that goes away takes the focus of a keyboard with it.
  if (state === 'connected' || state === 'closed') {
    for (const id of ['start', 'cut', 'cut-often']) $(id).disabled = state === 'closed';
  }
  figures();
});
session.on('connected', ({ result, reason, node }) => {
  const how = result === 'resumed' ? `resumed after ${session.cursor.seq}` : `${result} session ${reason}`;
  row('', 'connection', `${how}, gateway ${node}`, 'event');
});
session.on('disconnected', ({ code, reason }) => row('', 'connection', `lost (${code} ${reason}) after ${seen.last}`, 'event'));
session.on('gap', ({ from, to, reason }) => {
  check(from, to);
  row(`${from}–${to}`, 'gap', `dropped: ${reason}`, 'event');
});
session.on('discontinuity', ({ reason }) => {
  Object.assign(seen, { first: 0, last: 0, count: 0, missing: 0, disorder: 0 });
  row('', 'discontinuity', `a new log begins: ${reason}`, 'event');
});
session.on('closed', (error) => error && row('', 'closed', error.message, 'event'));
session.on('message', (message) => {
  check(message.seq, message.seq);
  const { type, body } = message;
  if (type === 'stroke') {
    paint(body);
    row(message.seq, message.kind, `stroke ${body.done} of ${body.total}`);
  } else if (message.kind === 'response') {
    row(message.seq, message.kind, message.code ? `error ${message.code}: ${message.error}` : 'the job is done', 'response');
  } else {
    row(message.seq, message.kind, message.title || message.content || type);
  }
  if (type === 'signed') $('result').textContent = `${message.title}: ${message.content}`;
});

$('start').addEventListener('click', async () => {
  const mine = (job += 1);
  blank();
  progress(0, 1, 'waiting for a worker');
  $('result').textContent = '';
  try {
    const picture = await session.request('paint', { job: mine, seed: Math.floor(Math.random() * 1e6) }, { deadline: 120 });
    if (mine !== job) return;
    canvas.setAttribute('aria-label', `The finished picture: ${picture.title}`);
    progress(picture.strokes, picture.strokes, `done: ${picture.title}, ${picture.strokes} strokes`);
  } catch (error) {
    $('result').textContent = `the job failed: ${error.message}`;
  }
});
$('cut').addEventListener('click', () => session.cut());
$('cut-often').addEventListener('click', () => {
  if (cutting === undefined) cutting = setInterval(() => session.cut(), 1000);
  else cutting = clearInterval(cutting);
  $('cut-often').setAttribute('aria-pressed', String(cutting !== undefined));
});

/** Numbers must follow each other, whatever happened to the connection between them. */
function check(from, to) {
  if (seen.count === 0) seen.first = from;
  else if (from <= seen.last) seen.disorder += 1;
  else seen.missing += from - seen.last - 1;
  seen.last = Math.max(seen.last, to);
  seen.count += 1;
  const ok = seen.missing === 0 && seen.disorder === 0;
  $('verdict').dataset.ok = ok;
  $('verdict').textContent = ok
    ? `✓ numbers ${seen.first} to ${seen.last}: every one, once, in order`
    : `✗ ${seen.missing} missing, ${seen.disorder} out of order`;
  figures();
}

function figures() {
  const { duplicates, connections, resumes } = session.stats;
  $('messages').textContent = seen.count;
  $('missing').textContent = seen.missing;
  $('disorder').textContent = seen.disorder;
  $('copies').textContent = duplicates;
  $('connections').textContent = connections;
  $('resumes').textContent = resumes;
}

function row(number, kind, text, style = '') {
  const line = document.createElement('tr');
  line.className = style;
  for (const value of [number, kind, text]) line.insertCell().textContent = value;
  $('journal').prepend(line);
  if ($('journal').rows.length > ROWS) $('journal').lastElementChild.remove();
}

function paint({ job: whose, done, total, columns, lines, tiles }) {
  if (whose !== job && job !== 0) return; // strokes of an earlier job are in the journal, not in this picture
  const [width, height] = [canvas.width / columns, canvas.height / lines];
  for (const { x, y, colour } of tiles) {
    painter.fillStyle = colour;
    painter.fillRect(Math.floor(x * width), Math.floor(y * height), Math.ceil(width) - 1, Math.ceil(height) - 1);
  }
  progress(done, total, `stroke ${done} of ${total}`);
}

function progress(done, total, text) {
  $('bar').max = total;
  $('bar').value = done;
  $('bar-text').textContent = text;
}

function blank() {
  painter.clearRect(0, 0, canvas.width, canvas.height);
  canvas.setAttribute('aria-label', 'The picture, being painted');
}

/** A name of its own for every tab, kept over a reload. */
function guest() {
  const name = sessionStorage.getItem('guest') ?? `guest-${Math.random().toString(36).slice(2, 8)}`;
  sessionStorage.setItem('guest', name);
  return name;
}
