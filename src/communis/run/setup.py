"""The parts of a run before its first round: clients, privacy, aggregation and server states."""

from __future__ import annotations

from communis.core.contract import Card
from communis.core.errors import CommunisError
from communis.core.replies import Rule
from communis.exchange import wire
from communis.exchange.messages import Topology
from communis.exchange.privacy.protection import Protection
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology import Apart, Star
from communis.fleet.clients import FleetClients
from communis.fleet.fleet import AnyMethod, Fleet
from communis.fleet.newcomers import hold_out
from communis.methods.parts.training import Recipe
from communis.run.aggregation import Aggregation
from communis.run.plan import Plan


class Setup:
    """Binds a fleet to a method. Refuses what cannot be run before any folder or worker exists."""

    def __init__(
        self,
        fleet: Fleet,
        method: AnyMethod,
        plan: Plan,
        topology: Topology | None = None,
        rule: Rule | None = None,
        privacy: PrivacyConfig | None = None,
    ) -> None:
        """rule: replaces means in aggregation, see core/reductions. privacy: see
        exchange/privacy."""
        topology = topology or Star()
        privacy = privacy or PrivacyConfig()
        fleet = hold_out(fleet, plan.newcomers)
        if not method.needs.exchange:
            topology = Apart()
            if privacy.mode != "none":
                raise CommunisError(
                    "exchange = false: nothing leaves a client, so privacy would only add noise to "
                    'what it keeps; set [privacy] mode = "none"'
                )
        self.clients = FleetClients(fleet.pool() if method.needs.raw_data else fleet, method)
        self.cards = self.clients.cards
        self.clock = self.clients.clock
        self.attackers = frozenset(fleet.attack.attackers)
        if isinstance(method, Recipe):
            method.check_paths({path: None for card in self.cards for path in card.params})
        if not any(self.cards[i].samples for i in self.clients.trainers):
            raise CommunisError("no client has a training window (split 0)")
        setting = plan.setting(
            len(self.clients.trainers), isinstance(topology, Star), rule is not None
        )
        self.privacy = Protection(privacy, self.clients, setting)
        self.aggregation = Aggregation(method, self.privacy, self.attackers, rule)
        if method.needs.raw_data:
            topology = self.aggregation.pooled(topology)
        self.topology = topology
        aggregators = topology.aggregators(len(self.cards))
        self.servers = {a: method.start_server(self.privacy.view) for a in aggregators}
        self.privacy.rehearse(self.servers[aggregators[0]])
        new = [self.privacy.cards[i] for i in fleet.newcomers]
        self.newcomers = {card.id: self.lacking(card) for card in new}

    def lacking(self, card: Card) -> str:
        """Returns why there is no common model for a newcomer with this card; empty if there is."""
        method = self.clients.method
        if not method.needs.exchange:
            return "nothing is exchanged"
        if not isinstance(self.topology, Star):
            return "a graph has no server from which a newcomer could get a model"
        server = self.servers[self.topology.aggregator_of(card.id)]
        received = {key.partition("/")[2] for key in wire.flatten(method.down(server, card))}
        if method.needs.raw_data:  # the pooled client has statistics after its first round
            received |= card.statistics.keys()
        needed = method.needs_to_predict(card)
        lacking = [path for path in needed if path not in received]
        if lacking and all(path in card.statistics for path in lacking):
            return (
                "BatchNorm statistics stay with the clients; buffers = 'average' or 'recalibrate' "
                "would complete the common model"
            )
        if lacking:
            nothing = received.isdisjoint(card.params)
            return f"{'the' if nothing else 'a part of the'} model stays with the clients"
        trained = self.clients.trained_paths
        if any(path in card.params and path not in trained for path in needed):
            return f"no member has its model, {card.model}"
        return ""
