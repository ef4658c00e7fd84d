"""The page of names: every place that it gives is there, and every term of the three descriptions has one."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/names.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src/veredus"

MX_RMQ = """RedisMessageQueue topic produce message_id payload_map pending processing delay_tasks execute_time
retry_execute_time all_expire_monitor expire_time pubsub_channel delay_wakeup delay_wakeup_channel move_to_dlq
produce_delay_message.lua process_delay_message.lua retry_message.lua complete_message.lua handle_timeout_message.lua
target_time batch_size LPOS 智能通知 监控服务 生命周期服务 message_failed 调度服务 消费者服务 retry_count retry_delay
updated_payload 职责分离 TIME"""
GATEWAY = """OrderedMessageSender OrderedMessageQueue MessageOrderingManager WaitingQueue SentMessages BeforeNotifies
AfterNotifies SendOrderedMessage NewServerSeq EncodeServerPush EnqueueMessage sendMessageDirectly sendCallback
processWaitingMessages MessageQueue nextExpectedSeq lastSentSeq lastAckedSeq ClientAck ackSeqID AckMessagesUpTo
retryTimedOutMessages MessageTimeout MaxRetries CleanupInterval cleanupLoop ResyncSequence GetQueueStats session_id
queue_size pending_count max_queue_size next_expected_seq last_sent_seq last_acked_seq stopped OrderedMessage ServerSeq
Push Data Timestamp Retries Sent beforeRspNotifies afterRspNotifies AddNotifyBindBeforeRsp GetAndRemoveBeforeNotifies
GetAndRemoveAfterNotifies NotifyBindMsgItem NotifyData MsgType Title Content Metadata SyncHint BindGrid CreateTime
createNotifyBindMsgItem NotifySyncHint BEFORE_RESPONSE grid BindClientSeqId UnicastPushRequest BusinessRequest
BusinessResponse ServerPush UpstreamService Gateway QUIC maxQueueSize RWMutex SeqId Action"""
ASYNQ = """client worker RDB broker protobuf 已计划 就绪 活跃 重试 归档 完成 Schedule forward ForwardIfReady Enqueue
Dequeue Done MarkAsComplete DeleteExpiredCompletedTasks Retry Archive Requeue Ping WriteServerState
ExtendLease pending_since paused processed aggregator forwarder healthchecker healthcheckFunc
heartbeater clock host pid serverID started workers state starting finished janitor batchSize
processor recoverer subscriber syncer logger interval done handler baseCtxFn queueConfig
orderedQueues taskCheckInterval retryDelayFunc isFailureFunc errHandler shutdownTimeout sema quit
abort cancelations timeout deadline RevokeTask SkipRetry retention once ch Clock mu expireAt jitter
Fisher-Yates panic"""


def test_every_term_is_on_the_page() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    for section, terms in zip(sections, (MX_RMQ, GATEWAY, ASYNQ), strict=True):
        there = "\n".join(row.split("|")[1] for row in section.splitlines() if row.startswith("|"))
        missing = [term for term in terms.split() if term not in there]
        assert missing == [], section.splitlines()[0]


def test_every_row_leads_somewhere() -> None:
    rows = [row.split("|")[1:3] for row in PAGE.splitlines() if row.startswith("| ") and not row.startswith("| there")]
    assert len(rows) > 80
    for there, here in rows:
        assert here.strip(), there
        for path in re.findall(r"`([a-z_/]+\.(?:py|lua))`", here):
            assert (SOURCE / path).exists(), f"{there}: {path}"


def test_every_name_is_in_the_file_it_is_said_to_be_in() -> None:
    for name, path in re.findall(r"`([A-Za-z_]+)[^`]*`: `([a-z_/]+\.py)`", PAGE):
        assert re.search(rf"\b{name}\b", (SOURCE / path).read_text(encoding="utf-8")), f"{name} is not in {path}"
