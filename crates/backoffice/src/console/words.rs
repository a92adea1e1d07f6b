//! Words that programs and people share: states, roles and problems. In English they are the API's own.

use std::fmt::Display;

use super::language::t;
use seckill_http::Problem;

const WORDS: &[(&str, &str)] = &[
    // Sales
    ("scheduled", "未开始"),
    ("open", "进行中"),
    ("paused", "已暂停"),
    ("ended", "已结束"),
    ("closed", "已关闭"),
    // Orders, payments and refunds
    ("accepted", "已接受"),
    ("pending_payment", "待付款"),
    ("paid", "已付款"),
    ("refunding", "退款中"),
    ("refunded", "已退款"),
    ("cancelled", "已取消"),
    ("rejected", "已拒绝"),
    ("expired", "超时未付"),
    ("by-buyer", "买家取消"),
    ("created", "已创建"),
    ("requested", "已请求"),
    ("sent", "已发送"),
    ("succeeded", "成功"),
    ("failed", "失败"),
    ("abandoned", "已放弃"),
    ("pending", "待处理"),
    ("processed", "已处理"),
    ("parked", "已搁置"),
    // Accounts
    ("admin", "管理员"),
    ("manager", "经理"),
    ("viewer", "查看者"),
    // Challenges
    ("none", "无"),
    ("image", "图片字符"),
    ("slider", "滑块"),
    ("work", "工作量证明"),
];

/// A word of the API in the language of the page. Unknown ones stay as they are.
pub(crate) fn word(word: impl Display) -> String {
    let word = word.to_string();
    let chinese = WORDS.iter().find(|(english, _)| *english == word);
    chinese.map_or_else(|| word.clone(), |(_, chinese)| t(&word, chinese).to_owned())
}

/// The problems that a person can meet in the console. Scripts get them from the frame, so that they say the same.
const PROBLEMS: &[(&str, &str)] = &[
    ("invalid-request", "请求无效"),
    ("wrong-credentials", "名称或密码错误"),
    ("signed-out", "请先登录"),
    ("forbidden", "您无权执行此操作"),
    ("forged-request", "请求可能来自其他网站"),
    ("unknown-sale", "没有这场抢购"),
    ("unknown-order", "没有这个订单"),
    ("not-found", "内容不存在"),
    ("method-not-allowed", "此地址不支持该方法"),
    ("too-slow", "请求传输超时"),
    ("order-not-ready", "订单正在生成，请稍后再试"),
    ("illegal-state", "订单状态不允许此操作"),
    ("conflict", "与当前状态冲突"),
    ("unworkable-terms", "这些条件互相矛盾"),
    ("body-too-large", "内容过大"),
    ("quota-exceeded", "请求过于频繁"),
    ("temporarily-unavailable", "服务繁忙，请稍后再试"),
];

/// What a problem is, in the language of the page.
pub(crate) fn problem(problem: &Problem) -> &str {
    let chinese = PROBLEMS.iter().find(|(code, _)| *code == problem.code());
    chinese.map_or(problem.title(), |(_, chinese)| t(problem.title(), chinese))
}

/// The problems by code, as JSON for the scripts of a Chinese page. An English page shows the API's own titles.
pub(crate) fn problems() -> String {
    let chinese: serde_json::Map<_, _> =
        PROBLEMS.iter().map(|(code, chinese)| ((*code).to_owned(), (*chinese).into())).collect();
    t("{}", &serde_json::Value::Object(chinese).to_string()).to_owned()
}
