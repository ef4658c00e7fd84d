package main

import (
	"encoding/json"
	"fmt"
)

type line struct {
	SKU   string         `json:"sku"`
	Count any            `json:"count"`
	Notes []string       `json:"notes"`
	Extra map[string]int `json:"extra"`
}

type order struct {
	ID    any             `json:"id"`
	Tags  []string        `json:"tags"`
	Ports map[string]int  `json:"ports"`
	Note  *string         `json:"note"`
	Lines []line          `json:"lines"`
	Bulk  map[string]line `json:"bulk"`
}

// payloads are what Go services really send: fields that were added, nil slices, maps and pointers, floats for whole numbers.
var payloads = map[string]any{
	"plain": order{
		ID: 7, Tags: []string{"a"}, Ports: map[string]int{"x": 1}, Lines: []line{{SKU: "s", Count: 2, Notes: []string{"n"}}},
	},
	"nils":      order{ID: 7},
	"nil lines": order{ID: 7, Lines: []line{{SKU: "s", Count: 2}}, Bulk: map[string]line{"b": {SKU: "t", Count: 3}}},
	"floats":    order{ID: float64(1e6), Lines: []line{{SKU: "s", Count: json.Number("1e+06")}, {SKU: "t", Count: float64(1e21)}}},
	"added": struct {
		order
		Added map[string]any `json:"added"`
		Lines []any          `json:"lines"`
	}{order{ID: 7}, map[string]any{"by": "Go"}, []any{map[string]any{"sku": "s", "count": 1, "colour": "red"}}},
	"nothing":       nil,
	"fraction":      order{ID: 1.5},
	"fraction deep": order{ID: 7, Lines: []line{{SKU: "s", Count: 0.5}}},
	"missing": struct {
		Tags []string `json:"tags"`
	}{},
	"nil id": order{},
	"text":   order{ID: "seven"},
}

// sendStruct sends one of them, as encoding/json writes it.
func (p *Peer) sendStruct(order Order) (any, error) {
	value, found := payloads[order.ID]
	if !found {
		return nil, fmt.Errorf("unknown payload %q", order.ID)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	order.Payload = data
	return p.enqueue(order)
}
