// An address that leads to no page.

import { h } from '../dom.js';
import { empty, head } from '../parts.js';

export class Missing {
  title = 'Not found';

  topics() {
    return {};
  }

  render() {
    return [
      head(this.title),
      h('div', { class: 'card' }, empty('Nothing is here', ['This address leads to no page. The ', h('a', { href: '#/' }, 'overview'), ' lists all queues.'])),
    ];
  }
}
