// Charts as SVG: tasks by state, sparklines, rates over minutes, bars over days.

import { h, s } from './dom.js';
import { compact, number, rate } from './format.js';

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

function frame(width, height, top, label, format) {
  const [left, bottom] = [44, 22];
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

/** [[unix ms, ended per second, of these failed], ...] */
export function rateChart(samples, width, height = 190) {
  if (samples.length < 2) return quiet(width, height, 'Measuring… the first rates appear in a few seconds.');
  const top = nice(Math.max(...samples.map((sample) => sample[1]), 1));
  const last = samples.at(-1);
  const label = `Tasks per second over the last minutes: now ${rate(last[1])}, of these failed ${rate(last[2])}, at most ${rate(top)}`;
  const { picture, left, bottom, y } = frame(width, height, top, label, (value) => compact(value));
  const [first, end] = [samples[0][0], last[0]];
  const x = (at) => left + ((at - first) / Math.max(1, end - first)) * (width - left - 2);
  for (const [name, column] of [
    ['done', 1],
    ['failed', 2],
  ]) {
    if (column === 2 && !samples.some((sample) => sample[2])) continue;
    const path = samples
      .map((sample, at) => `${at ? 'L' : 'M'}${x(sample[0]).toFixed(1)} ${y(sample[column]).toFixed(1)}`)
      .join('');
    picture.append(
      s('path', { class: `area ${name}`, d: `${path}L${x(end).toFixed(1)} ${y(0)}L${left} ${y(0)}Z` }),
      s('path', { class: `line ${name}`, d: path }),
    );
  }
  const back = (end - first) / 1000;
  picture.append(
    s('text', { x: left, y: height - 5 }, back > 90 ? `${Math.round(back / 60)} min ago` : `${Math.round(back)} s ago`),
    s('text', { x: width, y: height - 5, 'text-anchor': 'end' }, 'now'),
  );
  samples.forEach((sample, at) => {
    const step = (width - left) / samples.length;
    picture.append(
      s(
        'rect',
        { class: 'touch', x: (left + at * step).toFixed(1), y: 0, width: step.toFixed(2), height: height - bottom },
        s(
          'title',
          {},
          `${new Date(sample[0]).toLocaleTimeString()}: ${rate(sample[1])}/s, failed ${rate(sample[2])}/s`,
        ),
      ),
    );
  });
  return picture;
}

/** [{date, processed, failed}, ...], the oldest first. */
export function dayBars(days, width, height = 190) {
  const most = Math.max(...days.map((day) => day.processed), 0);
  if (!most) return quiet(width, height, 'No task has ended in this period.');
  const top = nice(most);
  const sum = days.reduce((total, day) => total + day.processed, 0);
  const failed = days.reduce((total, day) => total + day.failed, 0);
  const label = `Tasks per day over ${days.length} days: ${number(sum)} processed, ${number(failed)} failed`;
  const { picture, left, bottom, y } = frame(width, height, top, label, (value) => compact(value));
  const step = (width - left) / days.length;
  const gap = Math.min(6, step * 0.22);
  days.forEach((day, at) => {
    const x = left + at * step + gap / 2;
    const bar = s('g', { class: 'day' });
    const good = y(day.processed - day.failed);
    bar.append(s('title', {}, `${day.date}: ${number(day.processed)} processed, ${number(day.failed)} failed`));
    bar.append(s('rect', { class: 'touch', x: left + at * step, y: 0, width: step, height: height - bottom }));
    if (day.processed > day.failed) {
      bar.append(
        s('rect', {
          class: 'bar done',
          x,
          y: good,
          width: step - gap,
          height: Math.max(1, y(0) - good),
          rx: Math.min(2, step / 4),
        }),
      );
    }
    if (day.failed) {
      const up = y(day.processed);
      bar.append(
        s('rect', {
          class: 'bar failed',
          x,
          y: up,
          width: step - gap,
          height: Math.max(1.5, good - up - 1),
          rx: Math.min(2, step / 4),
        }),
      );
    }
    picture.append(bar);
  });
  for (const at of [0, days.length - 1]) {
    picture.append(
      s(
        'text',
        { x: at ? width : left, y: height - 5, 'text-anchor': at ? 'end' : 'start' },
        at ? 'today' : days[at].date.slice(5),
      ),
    );
  }
  return picture;
}

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
