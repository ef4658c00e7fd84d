// Creates and updates elements. Text is always inserted as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

/** h('a', {href: '#/', class: 'x', onclick: f}, 'text', node, [more]) */
export function h(tag, attrs, ...children) {
  return fill(document.createElement(tag), attrs, children);
}

/** The same for SVG. */
export function s(tag, attrs, ...children) {
  return fill(document.createElementNS(SVG, tag), attrs, children);
}

function fill(element, attrs, children) {
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) {
      (element.handlers ??= {})[name] = value;
      element[name] = value;
    } else if (name === 'style') {
      for (const [property, given] of Object.entries(value)) element.style.setProperty(property, given);
    } else if (name === 'key') {
      element.key = String(value);
    } else if (name === 'checked' || name === 'value' || name === 'indeterminate' || name === 'selected') {
      element[name] = value;
      (element.given ??= {})[name] = value;
    } else {
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false || child === '') continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Make `now` look like `next`, keeping the elements that stay: focus, scroll and half-typed text survive. */
export function morph(now, next) {
  if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName || now.key !== next.key) {
    now.replaceWith(next);
    return next;
  }
  if (now.nodeType === Node.TEXT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return now;
  }
  attributes(now, next);
  children(now, next);
  return now;
}

function attributes(now, next) {
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !(now.nodeName === 'DETAILS' && name === 'open')) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (now.getAttribute(name) !== value && name !== 'style') now.setAttribute(name, value);
  }
  if (next.style?.cssText !== now.style?.cssText) {
    for (const property of [...now.style])
      if (!next.style.getPropertyValue(property)) now.style.removeProperty(property);
    for (const property of next.style) now.style.setProperty(property, next.style.getPropertyValue(property));
  }
  for (const name of Object.keys({ ...now.handlers, ...next.handlers })) now[name] = next.handlers?.[name] ?? null;
  now.handlers = next.handlers;
  for (const [name, value] of Object.entries(next.given ?? {})) {
    const typing = name === 'value' && document.activeElement === now;
    if (!typing && now[name] !== value) now[name] = value;
  }
}

function children(now, next) {
  const keyed = new Map();
  for (const child of now.childNodes) if (child.key !== undefined) keyed.set(child.key, child);
  let at = now.firstChild;
  for (const wanted of [...next.childNodes]) {
    const known = wanted.key !== undefined ? keyed.get(wanted.key) : undefined;
    if (known && known !== at) {
      now.insertBefore(known, at);
      morph(known, wanted);
    } else if (at && (known || (at.key === undefined && wanted.key === undefined))) {
      const following = at.nextSibling;
      morph(at, wanted);
      at = following;
    } else {
      now.insertBefore(wanted, at);
    }
  }
  while (at) {
    const following = at.nextSibling;
    at.remove();
    at = following;
  }
}

const ICONS = {
  overview: 'M3 12h4l3-8 4 16 3-8h4',
  failures: 'M12 4l9 16H3zM12 10v4M12 17h.01',
  types: 'M5 20V10M12 20V4M19 20v-7',
  workers: 'M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01',
  schedules: 'M12 7v5l3 2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z',
  order: 'M5 6h9M5 12h14M5 18h6M17 15l3 3-3 3',
  gateway: 'M12 3v4M12 17v4M3 12h4M17 12h4M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8z',
  server:
    'M4 6c0-1.7 3.6-3 8-3s8 1.3 8 3-3.6 3-8 3-8-1.3-8-3zM4 6v6c0 1.7 3.6 3 8 3s8-1.3 8-3V6M4 12v6c0 1.7 3.6 3 8 3s8-1.3 8-3v-6',
  plus: 'M12 5v14M5 12h14',
  pause: 'M9 5v14M15 5v14',
  play: 'M7 5l12 7-12 7z',
  trash: 'M4 7h16M10 11v6M14 11v6M6 7l1 13h10l1-13M9 7V4h6v3',
  archive: 'M4 8h16v12H4zM3 4h18v4H3zM10 12h4',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4',
  sun: 'M12 17a5 5 0 1 0 0-10 5 5 0 0 0 0 10zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19',
  moon: 'M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z',
  auto: 'M12 3v18M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z',
  copy: 'M9 9h11v11H9zM15 9V4H4v11h5',
  check: 'M5 13l4 4L19 7',
  close: 'M6 6l12 12M18 6L6 18',
  cancel: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM6 6l12 12',
  requeue: 'M20 11a8 8 0 1 0-2 6M20 5v6h-6',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
  clock: 'M12 7v5l3 2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z',
  move: 'M4 12h15M13 6l6 6-6 6',
  lock: 'M6 11h12v9H6zM8 11V8a4 4 0 0 1 8 0v3',
  left: 'M15 5l-7 7 7 7',
  right: 'M9 5l7 7-7 7',
  help: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 17h.01',
  repair: 'M14.5 6.5a4 4 0 0 0 5 5L10 21l-3-3 9.5-9.5',
  out: 'M9 4H5v16h4M14 8l4 4-4 4M18 12H9',
};

export function icon(name) {
  return s('svg', { class: 'icon', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, s('path', { d: ICONS[name] }));
}
