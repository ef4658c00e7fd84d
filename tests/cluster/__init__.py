"""Everything on a cluster and behind Sentinel: real nodes, slots that move, masters that die."""
