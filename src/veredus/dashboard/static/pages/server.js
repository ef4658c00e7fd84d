// The Redis server: health checks, the doctor, INFO.

import { me, post } from '../api.js';
import { ask } from '../dialogs.js';
import { h } from '../dom.js';
import { bytes, duration, number, plural, query } from '../format.js';
import { button, card, facts, failure, findings, head, loading, stat, toast } from '../parts.js';

export class Server {
  title = 'Server';
  job = '';
  all = false;

  constructor(route, app) {
    this.app = app;
  }

  topics() {
    return { server: 'server', ...(this.job ? { job: `job${query({ id: this.job })}` } : {}) };
  }

  render({ server, job }, errors) {
    if (errors.server) return [head('Server'), failure(errors.server)];
    if (!server) return [head('Server'), loading()];
    const { info } = server;
    const name = info.valkey_version ? `Valkey ${info.valkey_version}` : `Redis ${info.redis_version}`;
    return [
      head('Server', { note: server.address }),
      h(
        'div',
        { class: 'stats' },
        stat('Server', name, { note: server.cluster ? 'one node of a cluster' : (info.redis_mode ?? '') }),
        stat('Memory', bytes(Number(info.used_memory)), {
          note: Number(info.maxmemory)
            ? `of ${bytes(Number(info.maxmemory))}`
            : `peak ${bytes(Number(info.used_memory_peak))}`,
        }),
        stat('Clients', Number(info.connected_clients), {
          note: `${number(Number(info.blocked_clients ?? 0))} waiting for tasks`,
        }),
        stat('Commands', `${number(Number(info.instantaneous_ops_per_sec))}/s`, {
          note: `${number(Number(info.total_commands_processed))} in total`,
        }),
        stat('Up for', duration(Number(info.uptime_in_seconds)), { note: info.role ?? '' }),
      ),
      card('Health', findings(server.findings)),
      this.#doctor(job, errors.job),
      card(
        h(
          'div',
          { class: 'split' },
          h('h2', {}, 'INFO'),
          button(this.all ? 'Hide' : 'Show all', {
            kind: 'small',
            onclick: () => {
              this.all = !this.all;
              this.app.update();
            },
          }),
        ),
        this.all
          ? facts(Object.entries(info).map(([field, value]) => [field, h('span', { class: 'mono' }, value)]))
          : h('p', { class: 'dim pad' }, `${number(Object.keys(info).length)} fields.`),
      ),
    ];
  }

  #doctor(job, error) {
    const running = job && ['running', 'stopping'].includes(job.status);
    const check = button(running ? 'Checking…' : 'Check every queue', {
      icon: 'search',
      disabled: running,
      onclick: () => this.#check(),
    });
    const found = job?.result?.findings ?? [];
    const broken = found.filter((one) => one.repairable);
    const repair =
      !me.read_only &&
      broken.length > 0 &&
      button(`Repair all ${number(job.result.total)}`, {
        icon: 'repair',
        kind: 'primary',
        onclick: () => this.#repair(job.result.total),
      });
    return card(
      h('div', { class: 'split' }, h('h2', {}, 'Doctor'), h('div', { class: 'actions' }, repair, check)),
      error && failure(error),
      job?.error && failure(job.error),
      !this.job &&
        h(
          'p',
          { class: 'dim pad' },
          'Checks every task of every queue for damage from crashes, evictions or old clients. Workers keep running, and nothing is changed.',
        ),
      job?.status === 'done' &&
        (found.length
          ? findings(
              found,
              (one) =>
                !me.read_only &&
                one.repairable &&
                button('Repair', { kind: 'small', label: `Repair: ${one.text}`, onclick: () => this.#repairOne(one) }),
            )
          : h(
              'p',
              { class: 'finding is-ok' },
              h('span', { class: 'badge is-completed' }, 'ok'),
              'Every task is where it should be.',
            )),
    );
  }

  async #check() {
    try {
      this.job = (await post('doctor/diagnose')).id;
      this.app.watch();
    } catch (error) {
      toast(error.message, 'bad');
    }
  }

  async #repairOne(one) {
    if (
      !(await ask({
        title: 'Repair this?',
        text: `${one.text}. The repair: ${one.advice}. No payload is lost.`,
        confirm: 'Repair',
      }))
    )
      return;
    await post('doctor/repair', { job: this.job, number: one.number }).then(
      ({ repaired }) => toast(repaired ? 'Repaired' : 'Nothing was left to repair'),
      (error) => toast(error.message, 'bad'),
    );
    this.#check();
  }

  async #repair(total) {
    if (
      !(await ask({
        title: `Repair ${plural(total, 'finding')}?`,
        text: `Each of the ${plural(total, 'finding')} is checked again and repaired. No payload is lost.`,
        confirm: `Repair ${number(total)}`,
      }))
    )
      return;
    await post('doctor/repair').then(
      () => toast('Repairing…'),
      (error) => toast(error.message, 'bad'),
    );
  }
}
