'use strict';
// The way of experience and weights through a run, as its status has it; an edge is blocked where the process before or behind it waits.

function flowPicture(run) {
  const { status } = run, { flow, replay, evaluation } = status, blocked = flow.blocked;
  const evaluates = status.processes.some((one) => one.role === 'evaluator'), device = [status.learner.device, status.learner.precision].filter(Boolean).join(' · ');
  const items = known(replay.items) ? count(replay.items) + (replay.capacity ? ' of ' + count(replay.capacity) : '') : '';
  return el('div', { class: 'flow' },
    node('Actors', whole(flow.actors), of(whole, flow.environments, ' environments'), ['simulators', 'inference'].includes(flow.limit)),
    edge('experience', of(count, flow.steps_per_second, ' steps/s'), blocked === 'experience' ? 'blocked: actors wait ' + percent(flow.actors_wait)
      : of(bytes, flow.sent_bytes_per_second, '/s') + (flow.compression > 1.05 ? ', ' + trim(flow.compression, 1) + '× compressed' : ''), blocked === 'experience'),
    flow.rollouts ? node('Replay', 'rollouts', items + ' steps of the next batch', flow.limit === 'replay')
      : node('Replay', known(flow.fill) ? percent(flow.fill) + ' full' : count(replay.items), items && items + ' items', flow.limit === 'replay', flow.fill),
    edge('batches', of(count, flow.items_per_second, ' items/s'), blocked === 'batches' ? 'blocked: learner waits ' + percent(flow.learner_waits)
      : of(figure, replay.samples_per_insert, replay.samples_per_insert === 1 ? ' sample per insert' : ' samples per insert'), blocked === 'batches'),
    node('Learner', of(figure, flow.updates_per_second, ' updates/s') || '–', device, flow.limit === 'learner'),
    edge('weights', known(evaluation.policy_version) ? 'v' + evaluation.policy_version : '', '', false),
    node('Evaluator', known(evaluation.return_mean) ? 'return ' + figure(evaluation.return_mean) : evaluates ? 'nothing measured' : 'off', known(evaluation.best_version) ? 'best: v' + evaluation.best_version : ''),
    el('div', { class: 'back' }, el('span', {}, 'weights' + (known(flow.policy_version) ? ' v' + whole(flow.policy_version) : '')
      + (known(flow.lag) ? ' · actors are ' + figure(flow.lag) + (figure(flow.lag) === '1' ? ' version behind' : ' versions behind') : ''))));
}

const of = (form, value, unit) => (known(value) ? form(value) + unit : '');

function node(name, value, note, limits, fill) {
  return el('div', { class: 'node' + (limits ? ' limits' : '') }, el('b', {}, name), el('span', { class: 'value' }, value), el('small', {}, note || ''),
    known(fill) ? meter(fill) : null, limits ? el('small', {}, 'limits the run') : null);
}

function edge(name, value, note, blocked) {
  return el('div', { class: 'edge' + (blocked ? ' blocked' : '') }, el('span', {}, value), el('div', { class: 'arrow', role: 'img', 'aria-label': name + (blocked ? ', blocked' : '') }), el('small', {}, note));
}

function meter(share) {
  const inner = el('i', {});
  inner.style.width = Math.min(Math.max(share, 0), 1) * 100 + '%';
  return el('div', { class: 'meter' }, inner);
}
