// One job: the types of veredus.js.

export interface Cursor {
  epoch: string;
  seq: number;
  /** Microseconds since 1970, given by the gateway. */
  ts: number;
}

export type MessageKind = 'response' | 'notify' | 'group' | 'system' | 'late';

/** One numbered message. */
export interface Message<Body = any> {
  kind: MessageKind;
  /** 1, 2, 3, ... without a hole within a session. */
  seq: number;
  ts: number;
  /** The request that a response answers; else 0. */
  rid: number;
  type: string;
  title: string;
  content: string;
  metadata: Record<string, string>;
  /** The JSON value, or bytes if the sender gave bytes. */
  body: Body;
  /** 0, or the error code of a response. */
  code: number;
  error: string;
  group: string;
  syncHint: 0 | 1 | 2;
  bindClientSeqId: number;
  /** Milliseconds since 1970, given by the sender; 0 if not. */
  createTime: number;
}

/** Messages `from` to `to` were dropped by the policy of the session, or expired (`reason`), and will not come. */
export interface Gap {
  kind: 'gap';
  from: number;
  to: number;
  reason: string;
  seq: number;
  ts: number;
}

/** The log was lost or started anew: what came before and what comes now do not join. Fetch your state afresh. */
export interface Discontinuity {
  kind: 'discontinuity';
  reason: 'expired' | 'unknown' | 'epoch' | 'ahead' | 'truncated' | 'fork' | (string & {});
  result: string;
  seq?: undefined;
}

export type Item<Body = any> = Message<Body> | Gap | Discontinuity;

export type State = 'connecting' | 'connected' | 'waiting' | 'closed';

/** What `export()` returns. It lets its holder take the session over: keep it secret. */
export interface Saved {
  sid: string;
  secret: string;
  cursor: Cursor;
  rid: number;
}

export interface Options {
  /** The token, or a function that fetches one before every connection. */
  token?: string | (() => string | Promise<string>);
  /** Keep the session over a page reload: `true` is sessionStorage. */
  storage?: boolean | Pick<Storage, 'getItem' | 'setItem' | 'removeItem'>;
  storageKey?: string;
  resume?: Saved;
  /** A WebSocket class, where there is no global one (Node 20). */
  WebSocket?: new (url: string, protocols: string[]) => any;
  windowMessages?: number;
  windowBytes?: number;
  ackMessages?: number;
  ackBytes?: number;
  ackDelay?: number;
  backoffBase?: number;
  backoffMax?: number;
  /** So often a request is sent again, under its number, that was rejected as retryable. */
  retries?: number;
  connectTimeout?: number;
  stallTimeout?: number;
  client?: string;
}

export interface RequestOptions {
  /** Seconds until the answer is of no use any more. */
  deadline?: number;
  /** Aborting asks the gateway to cancel. */
  signal?: AbortSignal;
  /** Run after all earlier serial requests of this session. */
  serial?: boolean;
  /** Resolve as soon as the request is durable. */
  noReply?: boolean;
}

export interface Stats {
  received: number;
  duplicates: number;
  connections: number;
  resumes: number;
  resets: number;
  gaps: number;
  holes: number;
  stalls: number;
  received_seq: number;
  handled_seq: number;
  acked_seq: number;
  waiting: number;
  open_requests: number;
}

export interface Events {
  message: Message;
  gap: Gap;
  discontinuity: Discontinuity;
  volatile: { type: string; body: any };
  state: { state: State; delay?: number };
  connected: { id: string; result: 'new' | 'resumed' | 'reset'; reason: string; node: string };
  disconnected: { code: number; reason: string };
  goaway: { reason: string; within: number };
  /** The end; null if this side closed it. */
  closed: SessionClosed | null;
  error: Error;
}

export class GatewayError extends Error {
  readonly code: number;
  readonly retryable: boolean;
  /** Seconds to wait before another try. */
  readonly retryAfter: number;
}
export class SessionClosed extends GatewayError {}
export class RequestFailed extends GatewayError {
  readonly body?: any;
}
export class RequestRejected extends GatewayError {}
export class RequestTimeout extends GatewayError {}
export class RequestLost extends GatewayError {}

export class Session implements AsyncIterable<Item> {
  constructor(url: string | string[], options?: Options);
  /** Resolves with the first welcome; rejects if there will be none. */
  readonly ready: Promise<Session>;
  readonly id: string;
  readonly state: State;
  readonly cursor: Cursor;
  readonly stats: Stats;
  request<Reply = any>(action: string, body?: unknown, options?: RequestOptions): Promise<Reply>;
  join(group: string): Promise<void>;
  leave(group: string): Promise<void>;
  authenticate(token: string): void;
  handled(): void;
  cut(): void;
  detach(): void;
  close(): void;
  export(): Saved;
  /** Returns a function that removes the listener. A promise of a 'message' listener is awaited before the next one. */
  on<Name extends keyof Events>(name: Name, listener: (value: Events[Name]) => unknown): () => void;
  [Symbol.asyncIterator](): AsyncIterableIterator<Item>;
}

export function connect(url: string | string[], options?: Options): Promise<Session>;
