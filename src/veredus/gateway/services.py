"""Services: what the parts of one gateway process share."""

from __future__ import annotations

from dataclasses import dataclass

from veredus.clock import ServerClock
from veredus.gateway.address_limits import AddressLimits
from veredus.gateway.config import GatewayConfig
from veredus.gateway.limits import Overload
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.store.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    config: GatewayConfig
    node: str
    """The name of this process in Redis."""
    store: Store
    clock: ServerClock
    overload: Overload
    addresses: AddressLimits
    outages: OutageLog
    restarts: Restarts
