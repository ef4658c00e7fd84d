// Charts as SVG: tasks by state, sparklines, bars per minute, hour or day, lines of durations.

import { h, s } from './dom.js';
import { compact, duration, number, plural } from './format.js';

export const STATES = ['active', 'pending', 'aggregating', 'scheduled', 'retry', 'archived', 'completed'];

/** The tasks of a queue by state, as one bar. */
export function stateBar(counts) {
  const total = STATES.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
  const text = total
    ? STATES.filter((one) => counts[one])
        .map((one) => `${number(counts[one])} ${one}`)
        .join(', ')
    : 'no tasks';
  const bar = s('svg', {
    class: 'statebar',
    viewBox: '0 0 100 8',
    preserveAspectRatio: 'none',
    role: 'img',
    'aria-label': text,
  });
  bar.append(s('title', {}, text), s('rect', { class: 'ground', width: 100, height: 8 }));
  const shown = STATES.filter((state) => counts[state]);
  // A small share would be invisible: every state with tasks gets at least one percent of the width.
  const widths = shown.map((state) => Math.max(1.2, (100 * counts[state]) / total));
  const sum = widths.reduce((a, b) => a + b, 0);
  let x = 0;
  shown.forEach((state, position) => {
    const width = (100 * widths[position]) / sum;
    bar.append(
      s('rect', { class: `fill-${state}`, x: x.toFixed(2), width: Math.max(0.3, width - 0.4).toFixed(2), height: 8 }),
    );
    x += width;
  });
  return bar;
}

export function sparkline(values, { width = 96, height = 24, name = '' } = {}) {
  const picture = s('svg', {
    class: `spark ${name}`,
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    'aria-hidden': 'true',
  });
  if (values.length < 2) {
    picture.append(s('path', { class: 'flat', d: `M0 ${height - 1.5}H${width}` }));
    return picture;
  }
  const top = Math.max(...values, 0.001);
  const points = values.map((value, at) => [
    ((at / (values.length - 1)) * width).toFixed(1),
    (height - 2 - (value / top) * (height - 5)).toFixed(1),
  ]);
  const path = points.map(([x, y], at) => `${at ? 'L' : 'M'}${x} ${y}`).join('');
  picture.append(
    s('path', { class: 'area', d: `${path}L${width} ${height}L0 ${height}Z` }),
    s('path', { class: 'line', d: path }),
  );
  return picture;
}

const nice = (value) => {
  const size = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * size).find((step) => step >= value) ?? value;
};

function frame(width, height, top, label, format, left = 44) {
  const bottom = 22;
  const picture = s('svg', {
    class: 'chart',
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: 'img',
    'aria-label': label,
  });
  const y = (value) => height - bottom - (value / top) * (height - bottom - 8);
  for (const value of [0, top / 2, top]) {
    picture.append(
      s('path', { class: 'rule', d: `M${left} ${y(value).toFixed(1)}H${width}` }),
      s('text', { x: left - 8, y: (y(value) + 4).toFixed(1), 'text-anchor': 'end' }, format(value)),
    );
  }
  return { picture, left, bottom, y };
}

/** Every span of a window, in order: what the series has of it, or nothing. */
export function filled(series, { start, end, span_s }) {
  const known = new Map(series.map((one) => [Date.parse(one.at), one]));
  const all = [];
  for (let at = Date.parse(start); at < Date.parse(end); at += span_s * 1000) {
    all.push({ ms: at, processed: 0, failed: 0, count: 0, ...known.get(at) });
  }
  return all;
}

/** A moment as the axis of a chart shows it: a time of the day, with its date if the chart is longer than a day. */
const moment = (ms, days) => {
  const at = new Date(ms);
  const time = at.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
  return days ? `${at.toLocaleDateString([], { month: 'short', day: 'numeric' })} ${time}` : time;
};

/** Bars of what ended per minute or hour, failures on top. `series` is of the API, with its `window`. */
export function spanBars(series, window, width, { what = 'attempts', height = 190 } = {}) {
  const days = Date.parse(window.end) - Date.parse(window.start) > 86_400_000;
  const spans = filled(series, window).map((one) => ({
    name: moment(one.ms, days),
    processed: one.count || one.processed,
    failed: one.count || one.failed,
  }));
  const per = window.span_s === 60 ? 'minute' : 'hour';
  return bars(spans, width, height, { what: `${what} per ${per}`, last: 'now', only: what === 'errors' });
}

/** [{date, processed, failed}, ...], the oldest first. */
export function dayBars(days, width, height = 190) {
  const spans = days.map((day) => ({ ...day, name: day.date.slice(5) }));
  return bars(spans, width, height, { what: 'tasks per day', last: 'today' });
}

/** [{name, processed, failed}, ...]; `processed` includes `failed`. */
function bars(spans, width, height, { what, last, only }) {
  const most = Math.max(...spans.map((span) => span.processed), 0);
  if (!most) return quiet(width, height, 'Nothing has ended in this period.');
  const top = nice(Math.max(most, 4));
  const sum = (name) => spans.reduce((total, span) => total + span[name], 0);
  const summary = (of) =>
    only ? plural(of('failed'), 'error') : `${number(of('processed'))} ended, ${number(of('failed'))} of them failed`;
  const label = `${what}, ${spans.length} in all: ${summary(sum)}`;
  const { picture, left, bottom, y } = frame(width, height, top, label, (value) => compact(value));
  const step = (width - left) / spans.length;
  const gap = Math.min(6, step * 0.22);
  const rx = Math.min(2, step / 4);
  spans.forEach((span, at) => {
    const x = left + at * step + gap / 2;
    const bar = s('g', { class: 'day' });
    const good = y(span.processed - span.failed);
    bar.append(
      s('title', {}, `${span.name}: ${summary((name) => span[name])}`),
      s('rect', { class: 'touch', x: left + at * step, y: 0, width: step, height: height - bottom }),
    );
    const area = (name, from, size) =>
      bar.append(s('rect', { class: `bar ${name}`, x, y: from, width: step - gap, height: size, rx }));
    if (span.processed > span.failed) area('done', good, Math.max(1, y(0) - good));
    if (span.failed) area('failed', y(span.processed), Math.max(1.5, good - y(span.processed) - (good < y(0) ? 1 : 0)));
    picture.append(bar);
  });
  picture.append(...ends(spans[0].name, last, left, width, height));
  return picture;
}

/** Lines of durations, one for each of `names`. A span without a value interrupts them. */
export function durationLines(spans, names, width, { height = 190, days = false } = {}) {
  const most = Math.max(...spans.flatMap((span) => names.map((name) => span[name] ?? 0)), 0);
  if (!most) return quiet(width, height, 'Nothing has ended in this period.');
  const top = nice(most);
  const label = `Seconds per span: ${names.map((name) => `${name} at most ${duration(Math.max(...spans.map((one) => one[name] ?? 0)))}`).join(', ')}`;
  const { picture, left, bottom, y } = frame(width, height, top, label, (value) => (value ? duration(value) : '0'), 58);
  const step = (width - left) / spans.length;
  for (const name of names) {
    let path = '';
    spans.forEach((span, at) => {
      if (span[name] === undefined || span[name] === null) return;
      const begins = at === 0 || (spans[at - 1][name] ?? null) === null;
      const [x, up] = [(left + (at + 0.5) * step).toFixed(1), y(span[name]).toFixed(1)];
      path += `${begins ? 'M' : 'L'}${x} ${up}`;
      // A span alone is drawn as a short line.
      if (begins && (spans[at + 1]?.[name] ?? null) === null) path += 'm-2 0h4';
    });
    picture.append(s('path', { class: `line ${name}`, d: path }));
  }
  spans.forEach((span, at) => {
    const touch = s('rect', { class: 'touch', x: left + at * step, y: 0, width: step, height: height - bottom });
    const values = names.map((name) => `${name} ${span[name] ? duration(span[name]) : '–'}`).join(', ');
    touch.append(s('title', {}, `${moment(span.ms, days)}: ${values}`));
    picture.append(touch);
  });
  picture.append(...ends(moment(spans[0].ms, days), 'now', left, width, height));
  return picture;
}

/** Rows of bars that share one axis of time: {name, from, to, kind, text}, in Unix ms. */
export function timeline(rows, label) {
  const first = Math.min(...rows.map((row) => row.from));
  const length = Math.max(1, Math.max(...rows.map((row) => row.to)) - first);
  const share = (ms) => `${((100 * ms) / length).toFixed(2)}%`;
  return h(
    'div',
    { class: 'timeline', role: 'list', 'aria-label': label },
    rows.map((row) =>
      h(
        'div',
        { role: 'listitem', title: `${row.name}: ${row.text}` },
        h('span', { class: 'line-name' }, row.name),
        h(
          'span',
          { class: 'track' },
          h('i', {
            class: `bg-${row.kind}`,
            style: { 'margin-left': `min(${share(row.from - first)}, 100% - 3px)`, width: share(row.to - row.from) },
          }),
        ),
        h('span', { class: 'dim' }, row.text),
      ),
    ),
  );
}

const ends = (first, last, left, width, height) => [
  s('text', { x: left, y: height - 5 }, first),
  s('text', { x: width, y: height - 5, 'text-anchor': 'end' }, last),
];

function quiet(width, height, text) {
  return h('div', { class: 'quiet', style: { height: `${height}px` } }, text);
}

/** A bar that shows how much of something is in use. */
export function meter(share, text, name = '') {
  const percent = Math.max(0, Math.min(100, share * 100));
  return h(
    'div',
    {
      class: `meter ${name}`,
      role: 'progressbar',
      'aria-valuemin': 0,
      'aria-valuemax': 100,
      'aria-valuenow': Math.round(percent),
      'aria-label': text,
    },
    h('span', { style: { width: `${percent.toFixed(1)}%` } }),
  );
}
