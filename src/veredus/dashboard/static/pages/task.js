// Everything about one task.

import { me } from '../api.js';
import { ACTIONS, perform } from '../actions.js';
import { meter } from '../charts.js';
import { h } from '../dom.js';
import { bytes, clock, duration, enc, query, whole } from '../format.js';
import { badge, block, button, card, empty, facts, failure, head, loading, when, workerLink } from '../parts.js';
import { attemptsCard, runCard, waitsCard } from './task_parts.js';

export class Task {
  constructor(route, app) {
    this.app = app;
    [, this.queue, , this.id] = route.parts;
    this.title = this.id;
    this.last = null;
  }

  topics() {
    return { task: `task${query({ queue: this.queue, id: this.id })}` };
  }

  render({ task }, errors) {
    const above = [
      h('a', { href: '#/' }, 'Overview'),
      ' / ',
      h('a', { href: `#/queues/${enc(this.queue)}${query({ state: (task ?? this.last)?.state })}` }, this.queue),
    ];
    if (errors.task) {
      const ended = errors.task.error === 'task_not_found' && this.last;
      return [
        head(this.last?.type ?? this.id, { above }),
        ended
          ? h(
              'div',
              { class: 'card' },
              empty(
                'This task is gone',
                'It was completed without a retention, or it was deleted or moved while you viewed it.',
              ),
              this.#details(this.last),
            )
          : failure(errors.task),
      ];
    }
    if (!task) return [head(this.id, { above }), loading()];
    this.last = task;
    const verbs = me.read_only ? [] : task.actions;
    return [
      head(task.type, {
        above,
        badges: [
          badge(task.state),
          task.cancelling && h('span', { class: 'badge is-archived' }, `cancelling, then ${task.cancelling}`),
        ],
        note: h('span', { class: 'mono' }, task.id),
        actions: verbs.map((verb) =>
          button(ACTIONS[verb].name, {
            icon: ACTIONS[verb].icon,
            kind: ACTIONS[verb].danger ? 'danger-quiet' : '',
            onclick: () => this.#do(verb),
          }),
        ),
      }),
      task.progress && task.state !== 'completed' && this.#progress(task.progress),
      this.#details(task),
    ];
  }

  async #do(verb) {
    const { state } = this.last;
    if ((await perform(verb, this.queue, [this.id], state, this.last)) && verb === 'delete')
      this.app.go(`#/queues/${enc(this.queue)}${query({ state })}`);
  }

  #progress({ share, note, at }) {
    const percent = `${Math.round(share * 100)} %`;
    return card(
      null,
      h(
        'div',
        { class: 'split' },
        h('strong', {}, `${percent}${note ? ` – ${note}` : ''}`),
        h('span', { class: 'dim' }, 'updated ', when(at)),
      ),
      meter(share, `Progress: ${percent}`),
    );
  }

  #details(task) {
    const { lease } = task;
    const keys = [
      ['Order key', task.order_key],
      ['Holds up its order key', task.order_hold ? 'if archived' : ''],
      ['Limit key', task.limit_key],
      ['Unique lock', task.unique_key],
      ['Group', task.group],
    ].filter(([, value]) => value);
    return h(
      'div',
      { class: 'task-grid' },
      h(
        'div',
        {},
        waitsCard(task),
        runCard(task),
        attemptsCard(task),
        task.last_err &&
          !task.attempts?.length &&
          card(
            h('h2', { class: 'text-archived' }, 'Last error'),
            block(task.last_err, 'Last error'),
            task.traceback && block(task.traceback, 'Traceback'),
            facts([
              ['Failed', when(task.last_failed_at)],
              ['At', clock(task.last_failed_at)],
            ]),
          ),
        bytesCard('Payload', task.payload),
        task.result && bytesCard('Result', task.result),
      ),
      h(
        'div',
        {},
        card(
          'Life',
          facts([
            ['State', badge(task.state)],
            ['Queue', h('a', { href: `#/queues/${enc(task.queue)}` }, task.queue)],
            ['Type', h('a', { href: `#/types/${enc(task.type)}` }, task.type)],
            ['Retries', `${task.retried} of ${task.max_retry} used`],
            task.last_failed_at && ['Last failure', when(task.last_failed_at)],
            task.waiting_for && !task.waits?.length && ['Waiting for', task.waiting_for],
            task.pending_since && ['Waiting since', when(task.pending_since)],
            task.next_process_at && ['scheduled', 'retry'].includes(task.state) && ['Due', when(task.next_process_at)],
            ['Timeout', task.timeout_s ? duration(task.timeout_s) : 'none'],
            task.deadline && ['Deadline', when(task.deadline)],
            task.expires_at && ['Dropped if not started', when(task.expires_at)],
            task.completed_at && ['Completed', when(task.completed_at)],
            task.kept_until && ['Kept until', when(task.kept_until)],
            ['Retention', task.retention_s ? duration(task.retention_s) : 'none: deleted when completed'],
          ]),
        ),
        task.state === 'active' &&
          card(
            'Lease',
            lease
              ? facts([
                  [
                    'Held by',
                    task.running
                      ? workerLink(task.running.worker)
                      : lease.ours
                        ? workerLink(lease.owner.split(':')[0])
                        : 'another client, such as a Go worker',
                  ],
                  task.running && ['Started', when(task.running.started)],
                  [
                    'Ends',
                    lease.seconds_left > 0
                      ? `in ${duration(lease.seconds_left)}, unless it is renewed`
                      : h(
                          'span',
                          { class: 'text-archived' },
                          `${duration(lease.seconds_left)} ago: it will be recovered`,
                        ),
                  ],
                ])
              : h(
                  'p',
                  { class: 'text-archived' },
                  'It has no lease. A worker will recover it; the doctor can repair it too.',
                ),
          ),
        keys.length > 0 &&
          card('Keys', facts(keys.map(([name, value]) => [name, h('span', { class: 'mono' }, value)]))),
        card(
          'Headers',
          task.headers
            ? facts(Object.entries(task.headers).map(([name, value]) => [name, h('span', { class: 'mono' }, value)]))
            : h('p', { class: 'dim' }, 'None.'),
        ),
      ),
    );
  }
}

function bytesCard(title, content) {
  if (!content) return card(title, h('p', { class: 'dim' }, 'None.'));
  const kind = content.utf8 === undefined ? 'bytes, as base64' : 'text';
  return card(
    h(
      'div',
      { class: 'split' },
      h('h2', {}, title),
      h(
        'span',
        { class: 'dim' },
        `${bytes(content.size)}${content.utf8 === undefined ? `, ${kind}` : ''}${content.truncated ? ', only the beginning is shown' : ''}`,
      ),
    ),
    block(whole(content), title),
  );
}
