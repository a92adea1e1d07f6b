// The texts of a sale's page: the button, the reason below it, the timer, and the messages.

import { addTexts } from "./front.js";

addTexts({
  // The button.
  "loading": ["One moment …", "请稍候…"], "before": ["Not yet", "尚未开始"], "opening": ["Opening …", "即将开放…"], "paused": ["Paused", "已暂停"],
  "buy": ["Buy now", "立即抢购"], "more": ["Buy more", "再抢一份"], "asking": ["Asking …", "正在抢购…"], "resting": ["Please wait {rest}", "请稍候 {rest}"],
  "gone": ["Sold out", "已抢光"], "have": ["It is yours", "您已抢到"], "over": ["Ended", "已结束"], "sign-in": ["Sign in to buy", "登录后抢购"],
  "level": ["For level {min_level} and above", "仅限 {min_level} 级及以上"], "check-first": ["First the check", "请先完成验证"],
  // What stands below it.
  "why-before": ["The button becomes active at the start.", "开始时按钮会自动亮起，无需刷新。"],
  "why-sign-in": ["Sign in below, so that you are ready at the start.", "请先在下方登录，做好准备。"],
  "why-check": ["Do the check above, so that you are ready at the start.", "请先完成上方验证，做好准备。"],
  "why-check-first": ["Do the check above: then the button lights up.", "完成上方验证后，按钮即会亮起。"],
  "why-level": ["This sale is for members of level {min_level} and above; yours is {level}.", "本场仅限 {min_level} 级及以上会员，您目前是 {level} 级。"],
  "why-paused": ["Not open just now. The button lights up by itself when the sale goes on.", "抢购暂停中，恢复后按钮会自动亮起。"],
  "fewer-left": ["Fewer than {n} units are left. You can try with one.", "剩余不足 {n} 件，可改为 1 件再试。"],
  "why-changed": ["The sale has new terms. This page loads itself again to show them.", "本场内容有变更，本页将自动刷新。"],
  "why-resting": ["After a click, the button pauses for a moment.", "点击一次后，按钮会休息片刻。"],
  "why-asking": ["Your click is on its way. No need to click again.", "请求已发出，无需重复点击。"],
  "why-open": ["One click is enough: you always get a definite answer.", "点一次就够，一定会有明确结果。"],
  "why-gone": ["Units that are not paid for come back. The button lights up by itself when one does.", "未付款的商品会重新放出，一有库存按钮就会亮起。"],
  "why-wave": ["{units} more units come at {at}. The button lights up by itself.", "{at} 将再放出 {units} 件，届时按钮会自动亮起。"],
  "why-have": ["You hold all that one buyer may.", "您已达到每人限购数量。"],
  "why-lost": ["No connection just now: this is what was last known.", "暂时无法连接，当前显示的是最近一次的状态。"],
  // The timer and the waves.
  "starts-in": ["Starts in", "距开始"], "ends-in": ["Ends in", "距结束"], "wave-in": ["More units in", "距下一批"], "is-over": ["The sale is over", "抢购已结束"],
  "pay-left": ["Reserved. Time left to pay", "已锁定，剩余付款时间"],
  "wave": ["{units} more units at {at}", "{at} 再放出 {units} 件"], "wave-left": ["in {left}", "还有 {left}"], "wave-past": ["on sale since then", "已放出"],
  // The payment.
  "writing": ["One moment …", "请稍候…"], "pay-amount": ["Pay {amount}", "付款 {amount}"], "pay-again": ["Try again: pay {amount}", "重试付款 {amount}"],
  "paying": ["Paying …", "正在付款…"], "late": ["The time to pay is over", "付款时间已过"], "confirm": ["Confirm: nothing to pay", "确认（无需付款）"],
  // Messages.
  "soon": ["The sale starts in less than {s} seconds.", "不到 {s} 秒后开抢。"], "go": ["The sale is open. You can buy now!", "开抢了！现在可以购买。"],
  "go-check": ["The sale is open. Do the check, and buy!", "开抢了！请完成验证后购买。"],
  "back": ["Units have come back. You can buy now!", "有库存了！现在可以购买。"],
  "now-gone": ["All units are taken for now.", "商品已暂时抢光。"], "now-paused": ["The sale has been paused.", "抢购已暂停。"],
  "say-asking": ["Your click is on its way …", "请求已发出…"],
  "say-again": ["No answer yet. Asking again for the same purchase …", "暂无回应，正在为同一笔购买再次询问…"],
  "say-gave-up": ["Still no answer. Click again when the button is ready: it asks for the same purchase and cannot buy twice.",
    "仍无回应。请在按钮亮起后再点一次：仍是同一笔购买，不会重复下单。"],
  "reserved": ["Reserved for you. It is yours when you have paid in time.", "已为您锁定，请在时限内付款。"],
  "hurry": ["Less than a minute left to pay.", "付款时间不足一分钟。"],
  "say-paying": ["Your payment is on its way.", "付款已发出。"],
  "say-late": ["The time to pay is over. Your order is being cancelled.", "付款时间已过，订单即将取消。"],
  "say-paid": ["Paid. It is yours!", "付款成功，归您了！"],
  "done": ["done", "已完成"], "failed": ["failed", "未成功"],
  "total": ["{n} × {price} = {amount}", "{n} × {price} = {amount}"], "quantity-of": ["{n} of at most {max}", "{n} 件，最多 {max} 件"],
  "sold-percent": ["{percent} % sold", "已售 {percent}%"],
});
