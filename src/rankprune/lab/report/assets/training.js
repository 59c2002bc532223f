// Charts over the epochs, and the trade-off between accuracy and size.
const accuracyOf = (line) => line.accuracy;

function drawTraining() {
  const list = peers(), focus = focused(), styles = palette();
  const any = list.some((run) => run.metrics.length);
  const off = list.some((run) => run.metrics.some((line) => !line.at_target));
  byId('training-note').textContent = `${focus.measure} after each epoch, and the fraction of prunable weights that are zero.${
    off ? ' Dotted: not at the final sparsity yet, so these accuracies do not count.' : ''}`;
  const curve = (value, name) => list.flatMap((run) => {
    const style = styles.get(seriesOf(run)), main = run === focus;
    const base = { type: 'scatter', x: run.metrics.map((line) => line.epoch), hoverinfo: 'text',
      text: run.metrics.map((line) => `<b>${plain(labelOf(run))}</b><br>epoch ${line.epoch}: ${name} ${percent(value(line))}${
        line.at_target ? '' : ` (at ${sparsityText(line.sparsity)}, not its target)`}`),
      opacity: main || list.length < 4 ? 1 : 0.75 };
    const look = { color: colour(style.colour), width: main ? 3.2 : 1.6 };
    const all = run.metrics.map(value);
    // The line is dotted until the target is reached, and solid from there on.
    const dotted = all.map((y, i) => (!run.metrics[i].at_target || (i > 0 && !run.metrics[i - 1].at_target) ? y : null));
    const solid = all.map((y, i) => (run.metrics[i].at_target ? y : null));
    return [
      { ...base, y: dotted, mode: 'lines+markers', line: { ...look, dash: 'dot' }, marker: { size: main ? 6 : 4, symbol: 'circle-open', color: look.color } },
      { ...base, y: solid, mode: 'lines+markers', line: look, marker: { size: main ? 8 : 5, symbol: style.symbol, color: look.color } },
    ];
  });
  const epochs = Math.max(1, ...list.map((run) => run.epochs || run.metrics.length));
  const x = axis('epoch', { range: [0.8, epochs + 0.2], ...(epochs < 12 ? { dtick: 1 } : {}) });
  const last = focus.metrics.at(-1);
  const table = (value, label) => ({ head: ['run', 'epoch', label, 'sparsity', 'at target'],
    rows: list.flatMap((run) => run.metrics.map((line) => [labelOf(run), line.epoch, percent(value(line)), sparsityText(line.sparsity), line.at_target ? 'yes' : 'no'])) });
  const empty = any ? '' : 'No epoch has finished yet.';
  const at = last ? `${focus.name} is at` : '';
  drawChart('chart-accuracy', { title: focus.measure, empty, traces: curve(accuracyOf, 'accuracy'),
    caption: last ? `${focus.name}: ${percent(accuracyOf(last))} after epoch ${last.epoch}` : '',
    summary: last ? `Line chart of ${list.length} runs by epoch. ${at} ${percent(accuracyOf(last))} after epoch ${last.epoch}.` : '',
    layout: { xaxis: x, yaxis: shareAxis('', list.flatMap((run) => run.metrics.map(accuracyOf))) }, ...table(accuracyOf, focus.measure.toLowerCase()) });
  drawChart('chart-sparsity', { title: 'Sparsity', empty, traces: curve((line) => line.sparsity, 'sparsity'),
    caption: last ? `${focus.name}: ${sparsityText(last.sparsity)} of a target of ${sparsityText(focus.target)}` : '',
    summary: last ? `Line chart of ${list.length} runs by epoch. ${at} ${sparsityText(last.sparsity)}; its target is ${sparsityText(focus.target)}.` : '',
    layout: { xaxis: x, yaxis: shareAxis('', [0, 1], { range: [-0.03, 1.04] }) }, ...table((line) => line.sparsity, 'sparsity') });
}

function drawTradeoff() {
  const focus = focused(), styles = palette();
  const ids = new Set(peers().map((run) => run.id));
  const mine = state.data.points.filter((point) => point.task === focus.task && point.runs.some((id) => ids.has(id)));
  const dense = mine.filter((point) => point.method === 'dense');
  const sparse = mine.filter((point) => point.method !== 'dense');
  const main = (point) => point.runs.includes(focus.id);
  const key = (point) => seriesOf(runs().find((run) => run.id === point.runs[0]));
  const seeds = mine.some((point) => point.runs.length > 1);
  byId('tradeoff').hidden = !mine.length;
  byId('tradeoff-note').textContent = `Finished runs of ${focus.task}, accuracy of the last epoch${
    seeds ? ', mean over seeds with one standard error' : ''}.`;
  const hover = (point) => `<b>${plain(point.name)}</b><br>accuracy ${percent(point.accuracy)}${point.error === null ? '' : ` ± ${(100 * point.error).toFixed(2)}`}`
    + `<br>sparsity ${sparsityText(point.sparsity)}${known(point.macs_share) ? `<br>MACs ${percent(point.macs_share, 1)} of dense` : ''}`
    + (point.runs.length > 1 ? `<br>${point.runs.length} seeds` : '');
  const bars = (list) => ({ type: 'data', array: list.map((p) => p.error ?? 0), visible: list.some((p) => p.error), thickness: 1.2, width: 3 });
  // One trace per series, connected if it has several points; the run in focus last, circled and labelled.
  const scatter = (value) => {
    const groups = Map.groupBy(sparse.filter((p) => known(value(p)) && value(p) > 0), key);
    const lines = [...groups].map(([name, list]) => {
      const style = styles.get(name);
      list.sort((a, b) => value(a) - value(b));
      return { type: 'scatter', mode: list.length > 1 ? 'lines+markers' : 'markers', x: list.map(value), y: list.map((p) => p.accuracy),
        text: list.map(hover), hoverinfo: 'text', line: { color: colour(style.colour), width: 1.4 },
        error_y: { ...bars(list), color: colour(style.colour) },
        marker: { size: 10, symbol: style.symbol, color: colour(style.colour), opacity: style.named ? 1 : 0.8 } };
    });
    const ring = sparse.filter((p) => main(p) && known(value(p)));
    lines.push({ type: 'scatter', mode: 'markers+text', x: ring.map(value), y: ring.map((p) => p.accuracy), hoverinfo: 'skip',
      text: ring.map((p) => plain(key(p))), textposition: 'top center', textfont: { color: colour('ink'), size: 12 },
      marker: { size: 19, symbol: 'circle-open', color: colour('ink'), line: { width: 1.6 } }, cliponaxis: false });
    return lines;
  };
  const level = dense.map((p) => ({ type: 'line', xref: 'paper', x0: 0, x1: 1, y0: p.accuracy, y1: p.accuracy, line: { color: colour('faint'), width: 1.4, dash: 'dash' } }));
  const named = dense.slice(0, 1).map((p) => ({ xref: 'paper', x: 0, xanchor: 'left', xshift: 4, y: p.accuracy, yanchor: 'bottom', text: `dense ${percent(p.accuracy)}`, showarrow: false, font: { size: 11, color: colour('soft') } }));
  const head = ['run', 'method', 'accuracy', 'standard error', 'sparsity', 'MACs of dense', 'seeds'];
  const rows = mine.map((p) => [p.name, p.method, percent(p.accuracy), p.error === null ? NONE : percent(p.error), sparsityText(p.sparsity), percent(p.macs_share, 1), p.runs.length]);
  const best = [...sparse].sort((a, b) => b.accuracy - a.accuracy)[0];
  const summary = best ? `${sparse.length} points. The most accurate is ${best.name} with ${percent(best.accuracy)} at ${sparsityText(best.sparsity)}.` : '';
  const caption = best ? `Best: ${best.name}, ${percent(best.accuracy)}` : '';
  const empty = sparse.length ? '' : 'No pruned run is finished yet.';
  const y = shareAxis('', mine.flatMap((p) => [p.accuracy - (p.error ?? 0), p.accuracy + (p.error ?? 0)]));
  const levels = new Set(sparse.map((p) => sparsityText(p.sparsity)));
  const ranked = sparse.length > 1 && levels.size === 1;
  const tall = ranked ? Math.max(320, 60 + 19 * sparse.length) : null;
  if (ranked) {
    // At a single sparsity a scatter plot would be one column, so the methods are ranked instead.
    const list = [...sparse].sort((a, b) => a.accuracy - b.accuracy);
    const names = list.map((p) => plain(key(p)));
    const distinct = new Set(names).size === names.length ? names : list.map((p) => plain(p.name));
    drawChart('chart-tradeoff', { title: `Accuracy at ${[...levels][0]} sparsity`, caption, summary, head, rows, empty,
      traces: [{ type: 'scatter', mode: 'markers', x: list.map((p) => p.accuracy), y: distinct, text: list.map(hover), hoverinfo: 'text', error_x: { ...bars(list), color: colour('faint') },
        marker: { opacity: 1, size: list.map((p) => (main(p) ? 14 : 10)), symbol: list.map((p) => styles.get(key(p)).symbol), color: list.map((p) => colour(styles.get(key(p)).colour)),
          line: { width: list.map((p) => (main(p) ? 2 : 0)), color: colour('ink') } }, cliponaxis: false }],
      height: tall, layout: { xaxis: shareAxis(focus.measure.toLowerCase(), mine.map((p) => p.accuracy)), yaxis: axis('', { type: 'category', tickmode: 'linear', range: [-0.7, list.length - 0.3] }),
        shapes: dense.map((p) => ({ type: 'line', yref: 'paper', y0: 0, y1: 1, x0: p.accuracy, x1: p.accuracy, line: { color: colour('faint'), width: 1.4, dash: 'dash' } })),
        annotations: dense.slice(0, 1).map((p) => ({ yref: 'paper', y: 0.02, yanchor: 'bottom', x: p.accuracy, xanchor: 'right', xshift: -4, text: `dense ${percent(p.accuracy)}`, showarrow: false, font: { size: 11, color: colour('soft') } })) } });
  } else {
    const kept = [...new Set(sparse.map((p) => 1 - p.sparsity))].sort((a, b) => a - b);
    drawChart('chart-tradeoff', { title: 'Accuracy and sparsity', caption, summary, head, rows, empty, traces: scatter((p) => 1 - p.sparsity),
      layout: { xaxis: axis('sparsity (logarithmic in the kept weights)', { type: 'log', autorange: 'reversed', tickvals: kept, ticktext: kept.map((v) => sparsityText(1 - v)) }), yaxis: y, shapes: level, annotations: named } });
  }
  const cost = sparse.some((p) => known(p.macs_share));
  drawChart('chart-flops', { title: 'Accuracy and FLOPs', caption: 'Inference MACs over the kept weights, as a fraction of the dense network’s', summary, head, rows,
    empty: cost ? '' : empty || 'The results have no MACs.', traces: scatter((p) => p.macs_share),
    height: tall, layout: { xaxis: logAxis('fraction of dense FLOPs (logarithmic)', sparse.map((p) => p.macs_share)), yaxis: y, shapes: level, annotations: named } });
}
