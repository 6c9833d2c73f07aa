module conformance/peers

go 1.22
