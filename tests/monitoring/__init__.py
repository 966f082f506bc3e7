"""What watches a pool: Prometheus' rules, Grafana's dashboard, the page for who is on call."""
