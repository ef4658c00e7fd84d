// One job: code that has to compile against veredus.d.ts, and code that must not.
import { connect, RequestFailed, Session, type Item, type Message } from '../veredus.js';

export async function use(): Promise<number> {
  const session: Session = await connect(['ws://127.0.0.1:8765'], { token: async () => 't', storage: true });
  const off: () => void = session.on('message', async (message: Message<{ n: number }>) => message.body.n);
  off();
  session.on('gap', ({ from, to }) => to - from);
  session.on('closed', (error) => error?.code);
  // @ts-expect-error: no such event
  session.on('mesage', () => {});
  // @ts-expect-error: no such option
  new Session('ws://x', { tokn: '' });
  const reply = await session.request<{ total: number }>('sum', [1, 2], { deadline: 5, signal: new AbortController().signal });
  for await (const item of session) {
    const seen: Item = item;
    if (seen.kind === 'gap') return seen.to;
    if (seen.kind === 'discontinuity') return seen.reason.length;
    return seen.seq;
  }
  try {
    await session.request('x');
  } catch (error) {
    if (error instanceof RequestFailed) return error.retryable ? error.retryAfter : error.code;
  }
  return reply.total;
}
