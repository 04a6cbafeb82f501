// Qpid Proton for C++, of Debian's packages: its event loop runs in a thread, and one request at a time waits for it.
//
// Requests as JSON lines on standard input, answers as JSON lines on standard output.

#include <functional>
#include <future>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>
#include <proton/codec/encoder.hpp>
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender.hpp>
#include <proton/session.hpp>
#include <proton/source_options.hpp>
#include <proton/ssl.hpp>
#include <proton/types.hpp>
#include <proton/work_queue.hpp>

using nlohmann::json;

static const std::string SESSION_FILTER = "com.microsoft:session-filter";

static std::string variable(const char* name) { return std::getenv(name); }

static std::string text(const proton::message& message) {
    const proton::value& body = message.body();
    return body.type() == proton::BINARY ? std::string(proton::get<proton::binary>(body)) : proton::to_string(body);
}

class Client : public proton::messaging_handler {
  public:
    // Run `start` in the loop's thread, and wait until a callback ends it.
    json ended(const std::function<void()>& start) {
        std::promise<json> end;
        end_ = &end;
        connection_.work_queue().add(start);
        return end.get_future().get();
    }

    void connect(proton::container& container) {
        proton::connection_options options;
        options.user(variable("KEY_NAME")).password(variable("KEY")).sasl_allowed_mechs("PLAIN");
        options.sasl_allow_insecure_mechs(true);
        std::string url = "amqp://" + variable("HOST");
        if (variable("TRANSPORT") == "tls") {
            url = "amqps://localhost";  // it checks no addresses in certificates
            options.ssl_client_options({variable("CA_FILE"), proton::ssl::VERIFY_PEER_NAME});
        }
        std::promise<json> opened;
        end_ = &opened;
        connection_ = container.connect(url + ":" + variable("PORT"), options);
        std::thread([&container] { container.run(); }).detach();
        opened.get_future().get();
    }

    json send(const json& asked) {
        proton::message message;
        const std::string body = asked["body"];
        message.body(proton::binary(body));
        if (asked.contains("session")) message.group_id(asked["session"].get<std::string>());
        if (asked.contains("at"))
            message.message_annotations().put("x-opt-scheduled-enqueue-time",
                                              proton::timestamp(asked["at"].get<int64_t>()));
        const std::string to = asked["to"];
        return ended([&] {
            waiting_ = message;
            to_ = to;
            if (!senders_.count(to)) senders_[to] = connection_.open_sender(to);
            if (senders_[to].credit() > 0) on_sendable(senders_[to]);
        });
    }

    json receive(const json& asked) {
        proton::source_options source;
        std::string key = asked["path"];
        if (asked.contains("session")) {
            key += asked["session"].dump();
            proton::source::filter_map filters;
            proton::value described;
            proton::codec::encoder filter(described);
            filter << proton::codec::start::described() << proton::symbol(SESSION_FILTER);
            if (asked["session"].is_string()) filter << asked["session"].get<std::string>();
            else filter << proton::null();
            filter << proton::codec::finish();
            filters.put(SESSION_FILTER, described);
            source.filters(filters);
        }
        return ended([&] {
            if (!receivers_.count(key)) receivers_[key] = open(asked["path"], source);
            receivers_[key].add_credit(1);
        });
    }

    json browse(const json& asked) {
        proton::source_options source;
        source.distribution_mode(proton::source::COPY);
        browsed_ = json::array();
        to_browse_ = asked["count"];
        return ended([&] { open(asked["path"], source).add_credit(to_browse_); });
    }

    json settle(const json& asked) { return settled(asked.at("delivery"), asked.at("how"), false); }

    json settle_then_close(const json& asked) { return settled(asked.at("delivery"), "accept", true); }

  private:
    std::promise<json>* end_ = nullptr;
    proton::connection connection_;
    proton::message waiting_;  // for the sender of `to_`, until it has credit
    std::string to_;
    std::map<std::string, proton::sender> senders_;
    std::map<std::string, proton::receiver> receivers_;
    std::vector<proton::delivery> deliveries_;
    json browsed_;
    uint32_t to_browse_ = 0;

    proton::receiver open(const std::string& path, proton::source_options& source) {
        proton::receiver_options options;
        return connection_.open_receiver(path, options.source(source).credit_window(0).auto_accept(false));
    }

    // Settle, and close all at once if `closes`: a settlement does not wait for its answer.
    json settled(size_t number, const std::string& how, bool closes) {
        return ended([&] {
            proton::delivery& delivery = deliveries_.at(number);
            if (how == "accept") delivery.accept();
            else if (how == "release") delivery.release();
            else delivery.modify();
            if (!closes) return done();
            delivery.receiver().close();
            delivery.receiver().session().close();
            connection_.close();
        });
    }

    void fail(const std::string& why) {
        if (end_) std::exchange(end_, nullptr)->set_exception(std::make_exception_ptr(std::runtime_error(why)));
    }

    void done(const json& result = nullptr) {
        if (end_) std::exchange(end_, nullptr)->set_value(result);
    }

    void on_connection_open(proton::connection&) override { done(); }
    void on_connection_close(proton::connection&) override { done(); }
    void on_tracker_accept(proton::tracker&) override { done(); }
    void on_tracker_reject(proton::tracker&) override { fail("rejected"); }
    void on_error(const proton::error_condition& error) override { fail(error.what()); }

    void on_sendable(proton::sender& sender) override {
        if (senders_[to_] != sender || waiting_.body().empty()) return;
        sender.send(waiting_);
        waiting_.clear();
    }

    void on_message(proton::delivery& delivery, proton::message& message) override {
        if (to_browse_) {
            browsed_.push_back(text(message));
            if (--to_browse_ == 0) done(browsed_);
            return;
        }
        deliveries_.push_back(delivery);
        json answer = {{"delivery", deliveries_.size() - 1},       {"body", text(message)},
                       {"count", message.delivery_count()},        {"ttl", message.ttl().milliseconds()},
                       {"properties", message.properties().size()}, {"session", message.group_id()}, {"partition", nullptr}};
        const auto& annotations = message.message_annotations();
        if (annotations.exists("x-opt-partition-id"))
            answer["partition"] = proton::coerce<int64_t>(annotations.get("x-opt-partition-id"));
        done(answer);
    }
};

int main() {
    Client client;
    proton::container container(client);
    client.connect(container);
    const std::map<std::string, json (Client::*)(const json&)> does = {
        {"send", &Client::send}, {"receive", &Client::receive}, {"browse", &Client::browse},
        {"settle", &Client::settle}, {"settle-then-close", &Client::settle_then_close}};
    for (std::string line; std::getline(std::cin, line);) {
        const json asked = json::parse(line);
        json answer;
        try {
            answer["result"] = (client.*does.at(asked["do"]))(asked);
        } catch (const std::exception& error) {
            answer["error"] = error.what();
        }
        std::cout << answer.dump() << std::endl;
    }
    std::_Exit(0);
}
