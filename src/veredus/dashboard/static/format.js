// Formats numbers, times and names, and encodes names for addresses.

const NUMBER = new Intl.NumberFormat('en');
const SHORT = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const number = (value) => NUMBER.format(value ?? 0);
export const compact = (value) => (Math.abs(value) < 10_000 ? NUMBER.format(value) : SHORT.format(value));

export function rate(value) {
  return value >= 100 ? number(Math.round(value)) : value >= 10 ? value.toFixed(0) : value > 0 ? value.toFixed(1) : '0';
}

export function bytes(value) {
  if (!value) return '0 B';
  const step = Math.min(4, Math.floor(Math.log(value) / Math.log(1024)));
  return `${(value / 1024 ** step).toFixed(step && value / 1024 ** step < 10 ? 1 : 0)} ${['B', 'kB', 'MB', 'GB', 'TB'][step]}`;
}

/** Seconds as `3.2 s`, `4 min 10 s`, `3 h 20 min`, `5 d 2 h`. */
export function duration(seconds) {
  const value = Math.abs(seconds);
  if (value < 0.001) return value > 0 ? '< 1 ms' : '0 s';
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  for (const [unit, size, smaller, part] of [
    ['min', 60, 's', 1],
    ['h', 3600, 'min', 60],
    ['d', 86400, 'h', 3600],
  ]) {
    const most = unit === 'd' ? Infinity : unit === 'h' ? 86400 : 3600;
    if (value < most) {
      const rest = Math.floor((value % size) / part);
      return `${Math.floor(value / size)} ${unit}${rest && value / size < 10 ? ` ${rest} ${smaller}` : ''}`;
    }
  }
  return '';
}

/** A time of the API as `12 s ago` or `in 3 min`. */
export function ago(instant) {
  if (!instant) return '–';
  const seconds = (Date.now() - Date.parse(instant)) / 1000;
  if (Math.abs(seconds) < 1) return 'now';
  const rounded = Math.abs(seconds) < 60 ? Math.round(seconds) : seconds;
  return seconds > 0 ? `${duration(rounded)} ago` : `in ${duration(rounded)}`;
}

/** A time in the local zone, to the second. */
export function clock(instant) {
  if (!instant) return '–';
  const at = new Date(instant);
  const two = (value) => String(value).padStart(2, '0');
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Texts of the API with times in them, each in the local zone. */
export const localTimes = (text) => text.replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, clock);

/** How long ago an instant was, as a length. */
export const lengthSince = (instant) => duration(Math.round(Math.max(0, Date.now() - Date.parse(instant)) / 1000));

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** `module.Error` without its module. */
export const className = (name) => name.slice(name.lastIndexOf('.') + 1);

/** A payload of the API as one line. */
export function line(content, most = 120) {
  if (!content) return '';
  const text = (content.utf8 ?? `${content.b64.slice(0, 60)}… (bytes)`).replace(/\s+/g, ' ');
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** A payload of the API in full, with JSON indented. */
export function whole(content) {
  if (!content) return '';
  if (content.utf8 === undefined) return content.b64;
  try {
    return JSON.stringify(JSON.parse(content.utf8), null, 2);
  } catch {
    return content.utf8;
  }
}

/** Encodes a name for an address. Bytes that are not UTF-8 arrive as lone surrogates and are sent back unchanged. */
export function enc(name) {
  return [...String(name)]
    .map((char) =>
      /[\udc80-\udcff]/.test(char) ? `%${(char.charCodeAt(0) - 0xdc00).toString(16)}` : encodeURIComponent(char),
    )
    .join('');
}

export function dec(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text.replace(/%([0-9a-f]{2})/gi, (_, hex) => {
      const code = parseInt(hex, 16);
      return String.fromCharCode(code < 0x80 ? code : 0xdc00 + code);
    });
  }
}

export function query(values) {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return pairs.length ? `?${pairs.map(([name, value]) => `${name}=${enc(value)}`).join('&')}` : '';
}
