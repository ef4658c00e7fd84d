// Gateway nodes, sessions and their outboxes.

import { me, post } from '../api.js';
import { ask } from '../dialogs.js';
import { h, icon } from '../dom.js';
import { bytes, duration, number, plural, query } from '../format.js';
import { button, card, empty, facts, failure, head, loading, table, toast, when } from '../parts.js';

const REASON = { name: 'reason', label: 'Reason', hint: 'Sent to the client; may be empty.' };

export class Gateway {
  title = 'Gateway';

  constructor(route, app) {
    this.app = app;
    this.after = route.query.after ?? '';
    this.user = route.query.user ?? '';
    this.group = route.query.group ?? '';
    this.id = route.query.session ?? '';
  }

  topics() {
    return {
      gateway: 'gateway',
      sessions: `sessions${query({ after: this.after, user: this.user, group: this.group })}`,
      ...(this.id ? { session: `session${query({ id: this.id })}` } : {}),
    };
  }

  render({ gateway, sessions, session }, errors) {
    if (errors.gateway) return [head('Gateway'), failure(errors.gateway)];
    if (!gateway) return [head('Gateway'), loading()];
    if (!gateway.nodes.length && !gateway.sessions) {
      return [
        head('Gateway'),
        h(
          'div',
          { class: 'card' },
          empty(
            'No gateway is running',
            'A gateway turns requests of browsers and apps into tasks and sends them messages in order. Start one:',
            'veredus gateway module:app',
          ),
        ),
      ];
    }
    return [
      head('Gateway', { note: `${plural(gateway.nodes.length, 'node')}, ${plural(gateway.sessions, 'session')}` }),
      this.#nodes(gateway.nodes),
      this.id && this.#session(session, errors.session),
      this.#sessions(sessions, errors.sessions),
    ];
  }

  #nodes(rows) {
    return card(
      'Nodes',
      rows.length
        ? table({
            label: 'Nodes',
            rows,
            key: (row) => row.node,
            columns: [
              { title: 'Node', cell: (row) => h('span', { class: 'strong' }, row.node) },
              {
                title: 'State',
                cell: (row) =>
                  h(
                    'span',
                    { class: `badge ${!row.alive ? 'is-archived' : row.draining ? 'is-retry' : 'is-completed'}` },
                    !row.alive ? 'gone' : row.draining ? 'draining' : 'alive',
                  ),
              },
              {
                title: 'Listens',
                wide: true,
                cell: (row) =>
                  h(
                    'span',
                    { class: 'mono' },
                    [row.ws && `ws ${row.ws}`, row.quic && `quic ${row.quic}`, row.http && `http ${row.http}`]
                      .filter(Boolean)
                      .join('  ') || '–',
                  ),
              },
              { title: 'Connections', number: true, cell: (row) => number(row.connections) },
              { title: 'Sessions', number: true, cell: (row) => number(row.sessions) },
              { title: 'Requests/s', number: true, cell: (row) => row.requests_per_second ?? 0 },
              { title: 'Open', number: true, cell: (row) => number(row.open_requests) },
              {
                title: 'Heartbeat',
                number: true,
                cell: (row) => (row.age > 1e6 ? 'left' : `${duration(row.age)} ago`),
              },
            ],
          })
        : empty(
            'No node is running',
            'Sessions wait for their clients to reconnect until they expire.',
            'veredus gateway module:app',
          ),
    );
  }

  #sessions(sessions, error) {
    const find = (event) => {
      event.preventDefault();
      const { user, group } = event.target.elements;
      const found = user.value.trim() ? { user: user.value.trim() } : { group: group.value.trim() };
      this.app.go(`#/gateway${query(found)}`);
    };
    const form = h(
      'form',
      { class: 'filters', role: 'search', 'aria-label': 'Find sessions', onsubmit: find },
      h(
        'div',
        { class: 'filter' },
        h('label', { for: 'session-user' }, 'User'),
        h('input', { id: 'session-user', name: 'user', value: this.user, autocomplete: 'off' }),
      ),
      h(
        'div',
        { class: 'filter' },
        h('label', { for: 'session-group' }, 'Group'),
        h('input', { id: 'session-group', name: 'group', value: this.group, autocomplete: 'off' }),
      ),
      h('button', { type: 'submit', class: 'button' }, icon('search'), h('span', {}, 'Find')),
      (this.user || this.group) && h('a', { class: 'button', href: '#/gateway' }, 'Clear'),
      this.user &&
        !me.read_only && [
          button('Disconnect user', { kind: 'danger-quiet', icon: 'close', onclick: () => this.#disconnect() }),
          button('Revoke tokens', { kind: 'danger-quiet', icon: 'close', onclick: () => this.#revoke() }),
        ],
    );
    if (error) return card('Sessions', form, failure(error));
    if (!sessions) return card('Sessions', form, loading());
    const open = (row) => `#/gateway${query({ user: this.user, group: this.group, after: this.after, session: row.session_id })}`;
    return card(
      'Sessions',
      form,
      sessions.sessions.length
        ? table({
            label: 'Sessions',
            rows: sessions.sessions,
            key: (row) => row.session_id,
            open,
            columns: [
              { title: 'Session', cell: (row) => h('a', { class: 'mono id', href: open(row) }, row.session_id) },
              { title: 'User', cell: (row) => row.user || h('span', { class: 'dim' }, 'anonymous') },
              {
                title: 'State',
                cell: (row) =>
                  h('span', { class: `badge ${row.state === 'attached' ? 'is-completed' : 'is-paused'}` }, row.state),
              },
              { title: 'Node', cell: (row) => row.node || '–' },
              { title: 'Outbox', number: true, cell: (row) => number(row.pending_count) },
              { title: 'Size', number: true, cell: (row) => bytes(row.bytes) },
              { title: 'Open requests', number: true, cell: (row) => number(row.open_requests) },
              { title: 'Created', number: true, cell: (row) => when(row.created_at) },
            ],
          })
        : empty(
            'No session here',
            this.user
              ? `The user ${this.user} has none.`
              : this.group
                ? `The group ${this.group} has no members.`
                : 'Clients that connect appear here.',
          ),
      (sessions.after || this.after) &&
        h(
          'nav',
          { class: 'pager', 'aria-label': 'Pages of the list' },
          this.after && h('a', { class: 'button', href: `#/gateway${query({ group: this.group })}` }, 'First'),
          sessions.after &&
            h(
              'a',
              { class: 'button', href: `#/gateway${query({ group: this.group, after: sessions.after })}` },
              'Next',
            ),
        ),
    );
  }

  #session(session, error) {
    if (error) return card('Session', failure(error));
    if (!session) return card('Session', loading());
    const end =
      !me.read_only &&
      button('End session', { kind: 'small danger-quiet', icon: 'close', onclick: () => this.#end(session) });
    return card(
      h(
        'div',
        { class: 'split' },
        h('h2', { class: 'mono' }, session.session_id),
        h('div', { class: 'actions' }, end, h('a', { class: 'button small', href: '#/gateway' }, 'Close')),
      ),
      facts([
        ['User', session.user || 'anonymous'],
        ['State', session.state],
        ['Node', session.node],
        ['Epoch', session.epoch],
        ['Acknowledged', number(session.floor)],
        ['Newest', number(session.top)],
        ['Waiting', plural(session.pending_count, 'message')],
        ['Size', bytes(session.bytes)],
        ['Open requests', number(session.open_requests)],
        ['Held', number(session.held)],
        ['Groups', session.groups.join(', ')],
        session.expires_at && ['Expires', when(session.expires_at)],
      ]),
      session.outbox.length
        ? table({
            label: 'Outbox',
            rows: session.outbox.slice().reverse(),
            key: (row) => row.seq,
            columns: [
              { title: 'Number', number: true, cell: (row) => number(row.seq) },
              { title: 'Written', cell: (row) => when(row.at) },
              { title: 'Expires', cell: (row) => when(row.expires_at) },
              { title: 'Size', number: true, cell: (row) => bytes(row.bytes) },
            ],
          })
        : h('p', { class: 'dim pad' }, 'The outbox is empty: the client has acknowledged everything.'),
    );
  }

  async #end(session) {
    const text = `Its client is disconnected, and ${plural(session.pending_count, 'unacknowledged message')} will be deleted.`;
    const given = await ask({
      title: 'End this session?',
      text,
      fields: [REASON],
      confirm: 'End it',
      danger: true,
    });
    if (given) await this.#ended(post('session/close', { id: session.session_id, reason: given.reason }));
  }

  async #disconnect() {
    const given = await ask({
      title: `Disconnect ${this.user}?`,
      text: 'All sessions of this user end, connected or not. Their unacknowledged messages are deleted. The user can connect again.',
      fields: [REASON],
      confirm: 'Disconnect',
      danger: true,
    });
    if (given) await this.#ended(post('user/disconnect', { user: this.user, reason: given.reason }));
  }

  async #revoke() {
    const given = await ask({
      title: `Revoke the tokens of ${this.user}?`,
      text: 'All gateways refuse tokens issued until now, and sessions that use one end.',
      confirm: 'Revoke',
      danger: true,
    });
    if (given) await this.#ended(post('user/revoke', { user: this.user }));
  }

  async #ended(asked) {
    await asked.then(
      (answer) => {
        toast('ended' in answer ? `Ended ${plural(answer.ended, 'session')}` : 'Ended');
        this.app.go('#/gateway');
      },
      (error) => toast(error.message, 'bad'),
    );
  }
}
