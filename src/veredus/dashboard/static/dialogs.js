// Confirmation dialogs and small forms. Escape and the first button close them without a change.

import { h } from './dom.js';

let serial = 0;

/** fields: {name, label, type, value, hint, options, required}. Resolves to the values, or to null if it was dismissed. */
export function ask({ title, text, fields = [], confirm, danger = false, watch, dismiss = 'Cancel' }) {
  return new Promise((resolve) => {
    const number = ++serial;
    const inputs = new Map();
    const warning = h('p', { class: 'warning', role: 'alert', hidden: true });
    const rows = fields.map((field) => {
      const id = `f${number}-${field.name}`;
      const common = {
        id,
        name: field.name,
        'aria-describedby': field.hint ? `${id}-hint` : null,
        required: field.required,
      };
      let input;
      if (field.type === 'area')
        input = h('textarea', { ...common, rows: field.rows ?? 12, spellcheck: 'false', value: field.value ?? '' });
      else if (field.type === 'select') {
        input = h(
          'select',
          common,
          field.options.map(([value, name]) => h('option', { value, selected: value === field.value }, name)),
        );
      } else if (field.type === 'check')
        input = h('input', { ...common, type: 'checkbox', checked: Boolean(field.value) });
      else
        input = h('input', {
          ...common,
          type: field.type ?? 'text',
          value: field.value ?? '',
          list: field.options && `${id}-list`,
          autocomplete: 'off',
          step: field.step,
        });
      inputs.set(field.name, input);
      const list =
        field.options &&
        field.type !== 'select' &&
        h(
          'datalist',
          { id: `${id}-list` },
          field.options.map((value) => h('option', { value })),
        );
      return h(
        'div',
        { class: `field ${field.type === 'check' ? 'inline' : ''}` },
        h('label', { for: id }, field.label),
        input,
        list,
        field.hint && h('p', { class: 'hint', id: `${id}-hint` }, field.hint),
      );
    });
    const detail = h('p', {}, text);
    const go = h('button', { type: 'submit', class: `button ${danger ? 'danger' : 'primary'}` }, confirm);
    const dialog = h(
      'dialog',
      { 'aria-labelledby': `t${number}` },
      h(
        'form',
        {
          method: 'dialog',
          onsubmit: (event) => {
            event.preventDefault();
            end(
              Object.fromEntries(
                [...inputs].map(([name, input]) => [name, input.type === 'checkbox' ? input.checked : input.value]),
              ),
            );
          },
        },
        h('h2', { id: `t${number}` }, title),
        detail,
        rows,
        warning,
        h(
          'div',
          { class: 'buttons' },
          h('button', { type: 'button', class: 'button', onclick: () => end(null) }, dismiss),
          go,
        ),
      ),
    );
    const end = (value) => {
      dialog.close();
      dialog.remove();
      leave?.();
      resolve(value);
    };
    dialog.addEventListener('cancel', (event) => {
      event.preventDefault();
      end(null);
    });
    dialog.addEventListener('click', (event) => event.target === dialog && end(null));
    document.body.append(dialog);
    // The caller may have to count tasks before the user can confirm.
    const leave = watch?.({ detail, go, end });
    dialog.showModal();
    (rows.length ? [...inputs.values()][0] : danger ? dialog.querySelector('.buttons button') : go).focus();
  });
}

export function show(title, ...children) {
  const id = `t${++serial}`;
  const close = () => {
    dialog.close();
    dialog.remove();
  };
  const dialog = h(
    'dialog',
    { 'aria-labelledby': id },
    h('h2', { id }, title),
    children,
    h('div', { class: 'buttons' }, h('button', { type: 'button', class: 'button primary', onclick: close }, 'Close')),
  );
  dialog.addEventListener('click', (event) => event.target === dialog && close());
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
